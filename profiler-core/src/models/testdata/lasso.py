"""Makes lasso.json: LASSO solutions of scikit-learn, the oracle of the test in ../lasso.rs.

python3 -m venv venv && venv/bin/pip install scikit-learn==1.9.1 && venv/bin/python lasso.py > lasso.json

Columns and y are standardised under the weights before scikit-learn sees them, as lasso.rs does; coefficients and
intercept are given in the units of the columns as they stand in the file.
"""

import json
import sys

import numpy as np
from sklearn.linear_model import Lasso


def solve(columns, y, weights, positive, part):
    x = np.array(columns).T
    share = weights / weights.sum()
    mean_x, mean_y = share @ x, share @ y
    scale_x = np.sqrt(share @ (x - mean_x) ** 2)
    scale_y = np.sqrt(share @ (y - mean_y) ** 2)
    z, t = (x - mean_x) / scale_x, (y - mean_y) / scale_y
    slopes = z.T @ (share * t)
    alpha = part * (slopes.max() if positive else np.abs(slopes).max())
    lasso = Lasso(alpha=alpha, positive=positive, tol=1e-12, max_iter=10_000_000)
    lasso.fit(z, t, sample_weight=weights)
    coefficients = lasso.coef_ * scale_y / scale_x
    return {
        "positive": positive,
        "alpha": float(alpha),
        "intercept": float(mean_y - coefficients @ mean_x),
        "coefficients": coefficients.tolist(),
    }


def growth(random, n):
    x = np.sort(np.exp(random.uniform(np.log(10), np.log(10_000), n)))
    columns = [np.sqrt(x), x, x * np.log2(x), x**1.5, x**2, np.log2(x)]
    y = (500 + 3 * x * np.log2(x)) * np.exp(0.1 * random.standard_normal(n))
    return columns, y, 1 / y**2


def plain(random, n):
    columns = [random.standard_normal(n) for _ in range(8)]
    y = 2 * columns[0] - 1.5 * columns[3] + 0.5 * random.standard_normal(n)
    return columns, y, random.uniform(0.5, 2.0, n)


problems = []
for seed in range(3):
    random = np.random.default_rng(seed)
    for kind, make in [("growth", growth), ("plain", plain)]:
        columns, y, weights = make(random, 30)
        ways = [(positive, part) for positive in [False, True] for part in [0.5, 0.1, 0.02]]
        problems.append({
            "name": f"{kind} {seed}",
            "columns": [c.tolist() for c in columns],
            "y": y.tolist(),
            "weights": weights.tolist(),
            "solutions": [solve(columns, y, weights, *way) for way in ways],
        })
json.dump(problems, sys.stdout, indent=None, separators=(",", ":"))
print()
