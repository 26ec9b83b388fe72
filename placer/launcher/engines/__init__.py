"""Engines such as Slurm, which schedule the processes of a run on machines.

An engine is a module with the interface of `placer.launcher.engines.engine.Engine`, and
`placer.launcher.engines.find` finds it by its name. On a machine of the engine, `placer
run BUILD --node auto` uses `placer.launcher.engines.surroundings` to find its node.
"""
