"""What tests share: oracles, machines, servers and histories."""
