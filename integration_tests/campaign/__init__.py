"""Long trials of a real job: kills, zombies, broker failures, damage, full disks, a long run at short epochs."""
