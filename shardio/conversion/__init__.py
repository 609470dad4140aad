"""Conversion: a source's samples packed into shards by many processes, the same bytes whatever their number.

Every shard that is finished has a record in the output's journal, so an interrupted conversion can resume.
"""
