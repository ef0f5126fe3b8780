"""Spark on the objects themselves: a PySpark data source that reads topics from the store, without the
service.
"""
