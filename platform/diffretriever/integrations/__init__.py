"""Adapters to other retrieval libraries; each module needs the extra of its name."""
