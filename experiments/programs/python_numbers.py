"""Python functions on numbers: primes, matrices, grids, integrals, recursion."""

from __future__ import annotations

from experiments.programs.kernels import Kernel

KERNELS = (
    Kernel(
        "sieve",
        10_000,
        4_000_000,
        """\
def $f(n):
    prime = $flags
    prime[0] = prime[1] = 0
    for p in range(2, int(n**0.5) + 1):
        if prime[p]:
            for multiple in range(p * p, n + 1, p):
                prime[multiple] = 0
    return sum(prime)
""",
        {"flags": ("[1] * (n + 1)", "bytearray([1]) * (n + 1)")},
    ),
    Kernel(
        "number theory",
        2000,
        300_000,
        """\
def $f(n):
    total = 0
    for start in range(1, n):
        a, b = $pair
        while b:
            a, b = b, a % b
        total += a
    return total
""",
        {"pair": ("start, n", "start * start, 720720", "rand(1000000) + 1, start")},
    ),
    Kernel(
        "collatz",
        500,
        100_000,
        """\
def $f(n):
    longest = 0
    for start in range(1, n):
        value, steps = start, 0
        while value != 1:
            value = value // 2 if value % 2 == 0 else 3 * value + 1
            steps += 1
        longest = max(longest, steps)
    return longest
""",
    ),
    Kernel(
        "matrix product",
        20,
        250,
        """\
def $f(n):
    a = [[$item for _ in range(n)] for _ in range(n)]
    b = [[$item for _ in range(n)] for _ in range(n)]
    c = [[0] * n for _ in range(n)]
    for i in range(n):
        for j in range(n):
            total = 0
            for k in range(n):
                total += a[i][k] * b[k][j]
            c[i][j] = total
    return int(c[0][0] + c[n // 2][n - 1])
""",
        {"item": ("rand(10)", "rand(10) / 4.0")},
    ),
    Kernel(
        "heat",
        40,
        450,
        """\
def $f(n):
    grid = [[float(rand(100)) for _ in range(n)] for _ in range(n)]
    for _ in range($steps):
        new = [row[:] for row in grid]
        for i in range(1, n - 1):
            for j in range(1, n - 1):
                new[i][j] = (grid[i - 1][j] + grid[i + 1][j] + grid[i][j - 1] + grid[i][j + 1]) / 4
        grid = new
    return int(grid[n // 2][n // 2])
""",
        {"steps": ("2", "5", "12")},
    ),
    Kernel(
        "bodies",
        10,
        250,
        """\
def $f(n):
    x = [rand(1000) / 10.0 for _ in range(n)]
    v = [0.0] * n
    for _ in range($steps):
        for i in range(n):
            force = 0.0
            for j in range(n):
                if i != j:
                    distance = x[j] - x[i]
                    force += distance / (abs(distance) ** 3 + 0.1)
            v[i] += 0.01 * force
        for i in range(n):
            x[i] += 0.01 * v[i]
    return int(sum(x))
""",
        {"steps": ("3", "10", "30")},
    ),
    Kernel(
        "integration",
        10_000,
        4_000_000,
        """\
def $f(n):
    total, width = 0.0, $end / n
    for i in range(n):
        x = (i + 0.5) * width
        total += $integrand * width
    return int(1000 * total)
""",
        {
            "end": ("1.0", "3.0"),
            "integrand": ("x * x", "math.sin(x)", "math.exp(-x * x)", "(x + 1) ** 0.5"),
        },
        ("math",),
    ),
    Kernel(
        "recursion",
        12,
        29,
        """\
def $f(n):
    return $end if n < 2 else $step
""",
        {"end": ("n", "1"), "step": ("$f(n - 1) + $f(n - 2)", "$f(n - 1) + $f(n - 3) + 1")},
    ),
    Kernel(
        "life",
        20,
        250,
        """\
def $f(n):
    cells = [[rand(3) == 0 for _ in range(n)] for _ in range(n)]
    for _ in range($steps):
        new = []
        for i in range(n):
            row = []
            for j in range(n):
                near = sum(cells[(i + a) % n][(j + b) % n] for a in (-1, 0, 1) for b in (-1, 0, 1)) - cells[i][j]
                row.append(near == 3 or (near == 2 and cells[i][j]))
            new.append(row)
        cells = new
    return sum(map(sum, cells))
""",
        {"steps": ("2", "5", "10")},
    ),
    Kernel(
        "elimination",
        20,
        250,
        """\
def $f(n):
    a = [[rand(1000) / 100.0 + (i == j) * 50 for j in range(n)] for i in range(n)]
    for k in range(n):
        for i in range(k + 1, n):
            factor = a[i][k] / a[k][k]
            for j in range(k, n):
                a[i][j] -= factor * a[k][j]
    return int(sum(a[i][i] for i in range(n)))
""",
    ),
    Kernel(
        "mandelbrot",
        30,
        350,
        """\
def $f(n):
    inside = 0
    for i in range(n):
        for j in range(n):
            c = complex(3.0 * i / n - 2, 2.0 * j / n - 1)
            z, steps = 0j, 0
            while abs(z) < 2 and steps < $most:
                z = z * z + c
                steps += 1
            inside += steps == $most
    return inside
""",
        {"most": ("20", "80")},
    ),
    Kernel(
        "fourier",
        64,
        32_768,
        """\
def $f(n):
    def transform(values):
        m = len(values)
        if m % 2 or m < 4:
            return [
                sum(v * cmath.exp(-2j * cmath.pi * k * i / m) for i, v in enumerate(values)) for k in range(m)
            ]
        even, odd = transform(values[::2]), transform(values[1::2])
        turned = [cmath.exp(-2j * cmath.pi * k / m) * o for k, o in enumerate(odd)]
        return [e + t for e, t in zip(even, turned)] + [e - t for e, t in zip(even, turned)]

    size = 1
    while size < n:
        size *= 2
    return int(abs(transform([rand(100) for _ in range(size)])[1]))
""",
        {},
        ("cmath",),
    ),
    Kernel(
        "prefix tree",
        1000,
        400_000,
        """\
def $f(n):
    tree = [0] * (n + 1)
    for _ in range(n):
        i, value = 1 + rand(n), rand(10)
        while i <= n:
            tree[i] += value
            i += i & -i
    total = 0
    for _ in range($queries):
        i = rand(n)
        while i > 0:
            total += tree[i]
            i -= i & -i
    return total
""",
        {"queries": ("100", "n")},
    ),
    Kernel(
        "buffer",
        50_000,
        4_000_000,
        """\
def $f(n):
    values = $values
    return len(values) + int(values[n // 2] + values[-1])
""",
        {
            "values": (
                "list(range(n))",
                "bytearray(n)",
                "[0] * n",
                "[i * i for i in range(n)]",
                "array.array('d', [0]) * n",
            )
        },
        ("array",),
    ),
)
