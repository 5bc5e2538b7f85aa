"""Whether what a backend gave is right: `judge` decides what is compared, `bounds` how far values may differ, `values`,
`metadata`, `ties`, `stochastic` and `distribution` how they are compared, and `findings` is what comes out. `choices`
judges a result beside several references, where equal numbers leave a choice.

What they are compared with is made by `conformance.reference`; number formats are in `conformance.numerics`.
"""
