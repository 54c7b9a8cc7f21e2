"""What users can ask for. The page's read-only operations are in `page`."""
