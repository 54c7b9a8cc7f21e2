"""How each tool is started so that its hooks report what it does, one module a tool."""
