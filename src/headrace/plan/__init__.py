"""Queries whose stages are cut at every shuffle, so that no finished work is done twice.

    operators   →   cut_stages   →   tasks named by what they read   →   shuffle files (`exchange/`)

A task is named by its input and by the code that reads it. So an application that is submitted
again finds what the one before it has published, whatever its cores and its splits.
"""
