"""Workers: each runs one stage, claim by claim, until the master lets it leave."""
