"""Streams of files: choose the files of the next pass, and check them before they are read."""

from placer.readers.streams.checks import check_files as check_files
from placer.readers.streams.file_stream import FileStream as FileStream
from placer.readers.streams.warnings import changed_text as changed_text
from placer.readers.streams.warnings import late_text as late_text
