"""Stores in directories, served to other processes and over HTTP."""
