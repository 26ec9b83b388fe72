"""Asynchronous tables, on workers and on servers, and backup workers."""
