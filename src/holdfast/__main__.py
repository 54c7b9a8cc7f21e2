"""`python -m holdfast`: the same program as `holdfast`."""

from holdfast.surfaces.cli.entry import main

main()
