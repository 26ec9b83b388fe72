"""Engines: what schedules the processes of a run on machines, such as Slurm.

An engine is a module with `OPTIONS` and three functions, as `placer.launcher.engines.engine.Engine`
says; `placer.launcher.engines.find` finds it by its name. On the nodes `placer run BUILD --node auto`
asks `placer.launcher.engines.surroundings` which node it is.
"""
