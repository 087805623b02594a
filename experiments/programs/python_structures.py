"""Python functions on sequences, texts, tables, graphs and trees."""

from __future__ import annotations

from experiments.programs.kernels import Kernel

KERNELS = (
    Kernel(
        "quadratic sort",
        200,
        5000,
        """\
def $f(n):
    values = [rand($bound) for _ in range(n)]
    for i in range(1, n):
        item, j = values[i], i - 1
        while j >= 0 and values[j] $order item:
            values[j + 1] = values[j]
            j -= 1
        values[j + 1] = item
    return values[0] + 3 * values[n // 2] + 7 * values[n - 1]
""",
        {"bound": ("1000", "1000000", "16"), "order": (">", "<")},
    ),
    Kernel(
        "merge sort",
        1000,
        150_000,
        """\
def $f(n):
    def merged(values):
        if len(values) < 2:
            return values
        middle = len(values) // 2
        left, right = merged(values[:middle]), merged(values[middle:])
        result, i, j = [], 0, 0
        while i < len(left) and j < len(right):
            if left[i] <= right[j]:
                result.append(left[i])
                i += 1
            else:
                result.append(right[j])
                j += 1
        return result + left[i:] + right[j:]

    values = merged([rand($bound) for _ in range(n)])
    return values[0] + 3 * values[n // 2] + 7 * values[n - 1]
""",
        {"bound": ("100", "100000")},
    ),
    Kernel(
        "library sort",
        2000,
        600_000,
        """\
def $f(n):
    values = [$item for _ in range(n)]
    values.sort($key)
    return len(values) + len(str(values[n // 3]))
""",
        {
            "item": (
                "rand(1000000)",
                "(rand(50), rand(50))",
                "str(rand(100000))",
                "rand(1000) / 7.0",
            ),
            "key": ("", "reverse=True", "key=lambda item: str(item)"),
        },
    ),
    Kernel(
        "text search",
        5000,
        2_000_000,
        """\
def $f(n):
    text = "".join("abcd"[rand($count)] for _ in range(n))
    pattern, found = "$pattern", 0
    for i in range(n - len(pattern) + 1):
        if text[i : i + len(pattern)] == pattern:
            found += 1
    return found
""",
        {"count": ("2", "4"), "pattern": ("ab", "abba", "aabbab")},
    ),
    Kernel(
        "words",
        5000,
        800_000,
        """\
def $f(n):
    words = ["w" + str(rand($bound)) for _ in range(n)]
    counts = {}
    for word in words:
        counts[word] = counts.get(word, 0) + 1
    return len(counts) + max(counts.values())
""",
        {"bound": ("20", "1000", "100000")},
    ),
    Kernel(
        "edit distance",
        60,
        1500,
        """\
def $f(n):
    a = [rand(4) for _ in range(n)]
    b = [rand(4) for _ in range(n)]
    before = list(range(n + 1))
    for i in range(1, n + 1):
        row = [i] + [0] * n
        for j in range(1, n + 1):
            row[j] = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (a[i - 1] != b[j - 1]))
        before = row
    return before[n]
""",
    ),
    Kernel(
        "common subsequence",
        60,
        1800,
        """\
def $f(n):
    a = [rand($letters) for _ in range(n)]
    b = [rand($letters) for _ in range(n)]
    table = [[0] * (n + 1) for _ in range(n + 1)]
    for i in range(n):
        for j in range(n):
            if a[i] == b[j]:
                table[i + 1][j + 1] = table[i][j] + 1
            else:
                table[i + 1][j + 1] = max(table[i][j + 1], table[i + 1][j])
    return table[n][n]
""",
        {"letters": ("2", "26")},
    ),
    Kernel(
        "knapsack",
        40,
        900,
        """\
def $f(n):
    capacity = n * $room
    best = [0] * (capacity + 1)
    for _ in range(n):
        weight, value = 1 + rand(20), rand(100)
        for c in range(capacity, weight - 1, -1):
            best[c] = max(best[c], best[c - weight] + value)
    return best[capacity]
""",
        {"room": ("2", "5", "10")},
    ),
    Kernel(
        "maze",
        30,
        800,
        """\
def $f(n):
    free = [[rand(10) < $open for _ in range(n)] for _ in range(n)]
    seen = [[False] * n for _ in range(n)]
    queue, visited = collections.deque([(0, 0)]), 0
    seen[0][0] = True
    while queue:
        i, j = queue.$take()
        visited += 1
        for a, b in ((i + 1, j), (i - 1, j), (i, j + 1), (i, j - 1)):
            if 0 <= a < n and 0 <= b < n and free[a][b] and not seen[a][b]:
                seen[a][b] = True
                queue.append((a, b))
    return visited
""",
        {"open": ("8", "10"), "take": ("popleft", "pop")},
        ("collections",),
    ),
    Kernel(
        "shortest paths",
        200,
        40_000,
        """\
def $f(n):
    edges = [[(rand(n), 1 + rand(50)) for _ in range($degree)] for _ in range(n)]
    distance = [10**9] * n
    distance[0] = 0
    heap = [(0, 0)]
    while heap:
        d, node = heapq.heappop(heap)
        if d > distance[node]:
            continue
        for other, length in edges[node]:
            if d + length < distance[other]:
                distance[other] = d + length
                heapq.heappush(heap, (d + length, other))
    return sum(d for d in distance if d < 10**9)
""",
        {"degree": ("3", "8")},
        ("heapq",),
    ),
    Kernel(
        "all paths",
        20,
        220,
        """\
def $f(n):
    d = [[1 + rand(99) for _ in range(n)] for _ in range(n)]
    for k in range(n):
        for i in range(n):
            for j in range(n):
                if d[i][k] + d[k][j] < d[i][j]:
                    d[i][j] = d[i][k] + d[k][j]
    return sum(map(sum, d))
""",
    ),
    Kernel(
        "queens",
        5,
        9,
        """\
def $f(n):
    def place(row, columns, left, right):
        if row == n:
            return 1
        found = 0
        for c in range(n):
            if c not in columns and row + c not in left and row - c not in right:
                found += place(row + 1, columns | {c}, left | {row + c}, right | {row - c})
        return found

    return place(0, frozenset(), frozenset(), frozenset())
""",
    ),
    Kernel(
        "tree",
        500,
        150_000,
        """\
class ${f}_Node:
    def __init__(self, key):
        self.key, self.left, self.right = key, None, None


def $f(n):
    root = ${f}_Node(rand(1000000))
    for _ in range(n):
        key, node = rand(1000000), root
        while True:
            if key < node.key:
                if node.left is None:
                    node.left = ${f}_Node(key)
                    break
                node = node.left
            else:
                if node.right is None:
                    node.right = ${f}_Node(key)
                    break
                node = node.right
    depth, level = 0, [root]
    while level:
        depth += 1
        level = [child for node in level for child in (node.left, node.right) if child]
    return depth
""",
    ),
)
