"""Vectors and impacts of texts: their arrays, their scores, their codes in few bits. Pure arithmetic."""
