"""Rollouts on one machine: requests to slots, slots to tokens."""
