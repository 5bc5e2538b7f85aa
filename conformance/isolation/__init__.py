"""So that a segfault, a hang or a memory blow-up costs one sample: cases run in children that may die.

`supervisor` lives in the pytest worker and survives; `child` is what it starts, a zygote that imports once and forks
`runner`s, in which samples run. `wire` is what they say to each other, `following` how a runner is followed, `deaths`
what its end means. `forked` runs a single function in a child. `frames`, `memory` and `process` are about one
process.
"""
