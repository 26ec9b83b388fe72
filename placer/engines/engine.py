"""The interface of the module that an entry point `placer.engines` names."""

from __future__ import annotations

from placer.launcher.engines.engine import Engine as Engine
from placer.launcher.engines.engine import EngineOption as EngineOption
from placer.launcher.engines.engine import Job as Job
from placer.launcher.engines.engine import JobEvent as JobEvent
from placer.launcher.engines.engine import JobFile as JobFile
from placer.launcher.engines.engine import JobFiles as JobFiles
from placer.launcher.engines.engine import JobNote as JobNote
from placer.launcher.engines.engine import JobRequest as JobRequest
from placer.launcher.engines.engine import Needs as Needs
from placer.launcher.engines.engine import NodeEnded as NodeEnded
from placer.launcher.engines.engine import NodeLines as NodeLines
from placer.launcher.engines.engine import NodeLog as NodeLog
