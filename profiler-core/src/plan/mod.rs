//! Which classes are traced, traced in bursts, or sampled: the knapsack under the budget (Metz et al. §4).
