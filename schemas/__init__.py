"""Everything that crosses a boundary: configs, manifests, reports (pydantic) and tables (Arrow)."""
