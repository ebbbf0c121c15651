"""Campaigns of actions of users, tools and platforms on a job: each trial ends right, or refused with advice that works."""
