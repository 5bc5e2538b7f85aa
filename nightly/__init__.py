"""When upstream moves: releases, drift and lag."""
