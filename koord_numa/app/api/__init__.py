"""The page and its JSON API, served from what the scheduler knows: read-only, versioned, and bounded in what a request can cost."""
