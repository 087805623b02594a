"""C functions on numbers: primes, matrices, grids, integrals, recursion."""

from __future__ import annotations

from experiments.programs.kernels import Kernel

KERNELS = (
    Kernel(
        "sieve",
        100_000,
        60_000_000,
        """\
static long $f(long n) {
    $type *prime = malloc((n + 1) * sizeof *prime);
    for (long i = 0; i <= n; i++) prime[i] = i > 1;
    for (long p = 2; p * p <= n; p++)
        if (prime[p])
            for (long multiple = p * p; multiple <= n; multiple += p) prime[multiple] = 0;
    long count = 0;
    for (long i = 0; i <= n; i++) count += prime[i];
    free(prime);
    return count;
}
""",
        {"type": ("char", "int")},
        ("stdlib.h",),
    ),
    Kernel(
        "number theory",
        50_000,
        6_000_000,
        """\
static long $f(long n) {
    long total = 0;
    for (long start = 1; start < n; start++) {
        long a = $first, b = $second;
        while (b) {
            long rest = a % b;
            a = b;
            b = rest;
        }
        total += a;
    }
    return total;
}
""",
        {"first": ("start", "start * start", "rand_below(1000000) + 1"), "second": ("n", "720720")},
    ),
    Kernel(
        "collatz",
        10_000,
        3_000_000,
        """\
static long $f(long n) {
    long longest = 0;
    for (long start = 1; start < n; start++) {
        long value = start, steps = 0;
        while (value != 1) {
            value = value % 2 == 0 ? value / 2 : 3 * value + 1;
            steps++;
        }
        if (steps > longest) longest = steps;
    }
    return longest;
}
""",
    ),
    Kernel(
        "matrix product",
        60,
        900,
        """\
static long $f(long n) {
    $type *a = malloc(n * n * sizeof *a), *b = malloc(n * n * sizeof *b), *c = calloc(n * n, sizeof *c);
    for (long i = 0; i < n * n; i++) {
        a[i] = rand_below(10);
        b[i] = rand_below(10);
    }
    for (long i = 0; i < n; i++)
        for (long j = 0; j < n; j++)
            for (long k = 0; k < n; k++) c[i * n + j] += a[i * n + k] * b[k * n + j];
    long result = c[0] + c[n * n - 1];
    free(a);
    free(b);
    free(c);
    return result;
}
""",
        {"type": ("int", "float", "double")},
        ("stdlib.h",),
    ),
    Kernel(
        "matrix product",
        60,
        1100,
        """\
static long $f(long n) {
    $type *a = malloc(n * n * sizeof *a), *b = malloc(n * n * sizeof *b), *c = calloc(n * n, sizeof *c);
    for (long i = 0; i < n * n; i++) {
        a[i] = rand_below(10);
        b[i] = rand_below(10);
    }
    for (long i = 0; i < n; i++)
        for (long k = 0; k < n; k++) {
            $type left = a[i * n + k];
            for (long j = 0; j < n; j++) c[i * n + j] += left * b[k * n + j];
        }
    long result = c[0] + c[n * n - 1];
    free(a);
    free(b);
    free(c);
    return result;
}
""",
        {"type": ("int", "float", "double")},
        ("stdlib.h",),
    ),
    Kernel(
        "heat",
        100,
        2500,
        """\
static long $f(long n) {
    double *grid = malloc(n * n * sizeof *grid), *new = malloc(n * n * sizeof *new);
    for (long i = 0; i < n * n; i++) new[i] = grid[i] = rand_below(100);
    for (int step = 0; step < $steps; step++) {
        for (long i = 1; i < n - 1; i++)
            for (long j = 1; j < n - 1; j++)
                new[i * n + j] = (grid[(i - 1) * n + j] + grid[(i + 1) * n + j] + grid[i * n + j - 1] +
                                  grid[i * n + j + 1]) / 4;
        double *other = grid;
        grid = new;
        new = other;
    }
    long result = grid[n / 2 * n + n / 2];
    free(grid);
    free(new);
    return result;
}
""",
        {"steps": ("2", "10", "40")},
        ("stdlib.h",),
    ),
    Kernel(
        "bodies",
        60,
        2000,
        """\
static long $f(long n) {
    double *x = malloc(n * sizeof *x), *v = calloc(n, sizeof *v), sum = 0;
    for (long i = 0; i < n; i++) x[i] = rand_below(1000) / 10.0;
    for (int step = 0; step < $steps; step++) {
        for (long i = 0; i < n; i++)
            for (long j = 0; j < n; j++) {
                double distance = x[j] - x[i], size = fabs(distance);
                v[i] += 0.01 * distance / (size * size * size + 0.1);
            }
        for (long i = 0; i < n; i++) x[i] += 0.01 * v[i];
    }
    for (long i = 0; i < n; i++) sum += x[i];
    free(x);
    free(v);
    return sum;
}
""",
        {"steps": ("5", "30", "100")},
        ("stdlib.h", "math.h"),
    ),
    Kernel(
        "integration",
        200_000,
        60_000_000,
        """\
static long $f(long n) {
    double total = 0, width = $end / n;
    for (long i = 0; i < n; i++) {
        double x = (i + 0.5) * width;
        total += $integrand * width;
    }
    return 1000 * total;
}
""",
        {"end": ("1.0", "3.0"), "integrand": ("x * x", "sin(x)", "exp(-x * x)", "sqrt(x + 1)")},
        ("math.h",),
    ),
    Kernel(
        "recursion",
        25,
        43,
        """\
static long $f(long n) { return n < 2 ? $end : $step; }
""",
        {"end": ("n", "1"), "step": ("$f(n - 1) + $f(n - 2)", "$f(n - 1) + $f(n - 3) + 1")},
    ),
    Kernel(
        "mandelbrot",
        100,
        1500,
        """\
static long $f(long n) {
    long inside = 0;
    for (long i = 0; i < n; i++)
        for (long j = 0; j < n; j++) {
            $type a = 3.0 * i / n - 2, b = 2.0 * j / n - 1, x = 0, y = 0;
            int steps = 0;
            while (x * x + y * y < 4 && steps < $most) {
                $type next = x * x - y * y + a;
                y = 2 * x * y + b;
                x = next;
                steps++;
            }
            inside += steps == $most;
        }
    return inside;
}
""",
        {"type": ("float", "double"), "most": ("30", "200")},
    ),
    Kernel(
        "buffer",
        500_000,
        150_000_000,
        """\
static long $f(long n) {
    unsigned char *bytes = malloc(n);
    long total = 0;
    memset(bytes, 1, n);
    for (long i = 0; i < n; i += $stride) total += bytes[i];
    free(bytes);
    return total;
}
""",
        {"stride": ("1", "64", "4096")},
        ("stdlib.h", "string.h"),
    ),
)
