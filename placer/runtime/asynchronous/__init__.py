"""Asynchronous tables: the ends of workers and servers, and backup workers."""
