"""What the scheduler shows to people: one model of nodes, pods and decisions behind the page, the JSON API, SVG and the terminal."""
