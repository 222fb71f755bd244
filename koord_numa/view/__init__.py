"""Views for users: one model of nodes, pods and decisions behind the page, the JSON API, SVG and the terminal."""
