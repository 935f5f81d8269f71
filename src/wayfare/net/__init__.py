"""The live host: the same cores on sockets, disks and clocks. It performs, and decides nothing."""
