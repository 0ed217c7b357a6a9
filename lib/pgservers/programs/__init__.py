"""PostgreSQL's programs: releases fetched, installations found, extensions built.

Servers, measuring and the command line may import it; nothing in it starts a server that stays.
"""
