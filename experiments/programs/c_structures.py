"""C functions on sequences, texts, tables, graphs and trees."""

from __future__ import annotations

from experiments.programs.kernels import Kernel

KERNELS = (
    Kernel(
        "quadratic sort",
        1000,
        50_000,
        """\
static long $f(long n) {
    $type *values = malloc(n * sizeof *values);
    for (long i = 0; i < n; i++) values[i] = rand_below($bound);
    for (long i = 1; i < n; i++) {
        $type item = values[i];
        long j = i - 1;
        while (j >= 0 && values[j] $order item) {
            values[j + 1] = values[j];
            j--;
        }
        values[j + 1] = item;
    }
    long result = values[0] + 3 * values[n / 2] + 7 * values[n - 1];
    free(values);
    return result;
}
""",
        {
            "type": ("int", "long", "double"),
            "bound": ("1000", "1000000", "16"),
            "order": (">", "<"),
        },
        ("stdlib.h",),
    ),
    Kernel(
        "merge sort",
        20_000,
        4_000_000,
        """\
static void ${f}_merge($type *values, $type *spare, long n) {
    if (n < 2) return;
    long middle = n / 2;
    ${f}_merge(values, spare, middle);
    ${f}_merge(values + middle, spare, n - middle);
    memcpy(spare, values, n * sizeof *values);
    long i = 0, j = middle;
    for (long k = 0; k < n; k++) {
        if (j >= n || (i < middle && spare[i] <= spare[j])) values[k] = spare[i++];
        else values[k] = spare[j++];
    }
}

static long $f(long n) {
    $type *values = malloc(n * sizeof *values), *spare = malloc(n * sizeof *spare);
    for (long i = 0; i < n; i++) values[i] = rand_below($bound);
    ${f}_merge(values, spare, n);
    long result = values[0] + 3 * values[n / 2] + 7 * values[n - 1];
    free(values);
    free(spare);
    return result;
}
""",
        {"type": ("int", "long", "double"), "bound": ("100", "100000")},
        ("stdlib.h", "string.h"),
    ),
    Kernel(
        "library sort",
        20_000,
        4_000_000,
        """\
static int ${f}_compare(const void *a, const void *b) {
    $type x = *(const $type *)a, y = *(const $type *)b;
    return (x > y) - (x < y);
}

static long $f(long n) {
    $type *values = malloc(n * sizeof *values);
    for (long i = 0; i < n; i++) values[i] = rand_below(1000000);
    qsort(values, n, sizeof *values, ${f}_compare);
    long result = values[n / 3];
    free(values);
    return result;
}
""",
        {"type": ("int", "double")},
        ("stdlib.h",),
    ),
    Kernel(
        "text search",
        200_000,
        40_000_000,
        """\
static long $f(long n) {
    char *text = malloc(n + 1);
    const char *pattern = "$pattern", *at = text;
    for (long i = 0; i < n; i++) text[i] = 'a' + rand_below($count);
    text[n] = 0;
    long found = 0;
    while ((at = strstr(at, pattern))) {
        found++;
        at++;
    }
    free(text);
    return found;
}
""",
        {"count": ("2", "4", "20"), "pattern": ("ab", "abba", "aabbab")},
        ("stdlib.h", "string.h"),
    ),
    Kernel(
        "palindromes",
        2000,
        60_000,
        """\
static long $f(long n) {
    char *text = malloc(n);
    for (long i = 0; i < n; i++) text[i] = 'a' + rand_below($count);
    long best = 0;
    for (long center = 0; center < n; center++) {
        long reach = 0;
        while (center - reach >= 0 && center + reach < n && text[center - reach] == text[center + reach]) reach++;
        if (2 * reach - 1 > best) best = 2 * reach - 1;
    }
    free(text);
    return best;
}
""",
        {"count": ("1", "2", "26")},
        ("stdlib.h",),
    ),
    Kernel(
        "edit distance",
        400,
        16_000,
        """\
static long $f(long n) {
    int *a = malloc(n * sizeof *a), *b = malloc(n * sizeof *b), *row = malloc((n + 1) * sizeof *row);
    for (long i = 0; i < n; i++) {
        a[i] = rand_below(4);
        b[i] = rand_below(4);
    }
    for (long j = 0; j <= n; j++) row[j] = j;
    for (long i = 1; i <= n; i++) {
        int corner = row[0];
        row[0] = i;
        for (long j = 1; j <= n; j++) {
            int best = corner + (a[i - 1] != b[j - 1]);
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            corner = row[j];
            row[j] = best;
        }
    }
    long result = row[n];
    free(a);
    free(b);
    free(row);
    return result;
}
""",
        {},
        ("stdlib.h",),
    ),
    Kernel(
        "common subsequence",
        200,
        4500,
        """\
static long $f(long n) {
    $type *table = calloc((n + 1) * (n + 1), sizeof *table);
    char *a = malloc(n), *b = malloc(n);
    for (long i = 0; i < n; i++) {
        a[i] = rand_below($letters);
        b[i] = rand_below($letters);
    }
    for (long i = 1; i <= n; i++)
        for (long j = 1; j <= n; j++) {
            $type above = table[(i - 1) * (n + 1) + j], left = table[i * (n + 1) + j - 1];
            table[i * (n + 1) + j] =
                a[i - 1] == b[j - 1] ? table[(i - 1) * (n + 1) + j - 1] + 1 : above > left ? above : left;
        }
    long result = table[n * (n + 1) + n];
    free(table);
    free(a);
    free(b);
    return result;
}
""",
        {"letters": ("2", "26"), "type": ("short", "int", "long")},
        ("stdlib.h",),
    ),
    Kernel(
        "knapsack",
        150,
        5000,
        """\
static long $f(long n) {
    long capacity = n * $room, *best = calloc(capacity + 1, sizeof *best);
    for (long item = 0; item < n; item++) {
        long weight = 1 + rand_below(20), value = rand_below(100);
        for (long c = capacity; c >= weight; c--)
            if (best[c - weight] + value > best[c]) best[c] = best[c - weight] + value;
    }
    long result = best[capacity];
    free(best);
    return result;
}
""",
        {"room": ("5", "20", "60")},
        ("stdlib.h",),
    ),
    Kernel(
        "maze",
        100,
        3500,
        """\
static long $f(long n) {
    char *free_cell = malloc(n * n), *seen = calloc(n * n, 1);
    long *queue = malloc(n * n * sizeof *queue), first = 0, last = 1;
    const long steps[4][2] = {{1, 0}, {-1, 0}, {0, 1}, {0, -1}};
    for (long i = 0; i < n * n; i++) free_cell[i] = rand_below(10) < $open;
    queue[0] = 0;
    seen[0] = 1;
    while (first < last) {
        long cell = queue[first++], i = cell / n, j = cell % n;
        for (int s = 0; s < 4; s++) {
            long a = i + steps[s][0], b = j + steps[s][1];
            if (a < 0 || b < 0 || a >= n || b >= n || !free_cell[a * n + b] || seen[a * n + b]) continue;
            seen[a * n + b] = 1;
            queue[last++] = a * n + b;
        }
    }
    free(free_cell);
    free(seen);
    free(queue);
    return last;
}
""",
        {"open": ("8", "10")},
        ("stdlib.h",),
    ),
    Kernel(
        "all paths",
        40,
        900,
        """\
static long $f(long n) {
    int *d = malloc(n * n * sizeof *d);
    for (long i = 0; i < n * n; i++) d[i] = 1 + rand_below(99);
    for (long k = 0; k < n; k++)
        for (long i = 0; i < n; i++)
            for (long j = 0; j < n; j++)
                if (d[i * n + k] + d[k * n + j] < d[i * n + j]) d[i * n + j] = d[i * n + k] + d[k * n + j];
    long total = 0;
    for (long i = 0; i < n * n; i++) total += d[i];
    free(d);
    return total;
}
""",
        {},
        ("stdlib.h",),
    ),
    Kernel(
        "queens",
        6,
        13,
        """\
static long ${f}_place(int n, int row, unsigned columns, unsigned left, unsigned right) {
    if (row == n) return 1;
    long found = 0;
    for (int c = 0; c < n; c++) {
        if (columns >> c & 1 || left >> (row + c) & 1 || right >> (row - c + n) & 1) continue;
        found += ${f}_place(n, row + 1, columns | 1u << c, left | 1u << (row + c), right | 1u << (row - c + n));
    }
    return found;
}

static long $f(long n) { return ${f}_place(n, 0, 0, 0, 0); }
""",
    ),
    Kernel(
        "tree",
        5000,
        600_000,
        """\
struct ${f}_node {
    long key;
    struct ${f}_node *left, *right;
};

static struct ${f}_node *${f}_insert(struct ${f}_node *node, long key) {
    if (!node) {
        node = calloc(1, sizeof *node);
        node->key = key;
    } else if (key < node->key) {
        node->left = ${f}_insert(node->left, key);
    } else {
        node->right = ${f}_insert(node->right, key);
    }
    return node;
}

static long ${f}_depth(const struct ${f}_node *node) {
    if (!node) return 0;
    long left = ${f}_depth(node->left), right = ${f}_depth(node->right);
    return 1 + (left > right ? left : right);
}

static long $f(long n) {
    struct ${f}_node *root = NULL;
    for (long i = 0; i < n; i++) root = ${f}_insert(root, rand_below(1000000));
    return ${f}_depth(root);
}
""",
        {},
        ("stdlib.h",),
    ),
)
