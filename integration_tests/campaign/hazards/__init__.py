"""Campaigns of what users, other tools and the platform do to a job: each trial ends right, or refused with advice that works."""
