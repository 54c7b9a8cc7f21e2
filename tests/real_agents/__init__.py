"""Tests with the real tools: Claude Code, Codex, opencode, Gemini CLI and ACP agents, against a
model endpoint on this machine. `make test-agents` installs the tools and runs these.
"""
