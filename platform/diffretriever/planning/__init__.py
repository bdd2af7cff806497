"""Capacity planning: what an index takes in hours, bytes, memory and money, before it is made."""
