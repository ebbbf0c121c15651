"""Long trials of a real job: kills, zombies, broker deaths, damage, full disks, a long run at short epochs."""
