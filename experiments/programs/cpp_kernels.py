"""C++ functions on containers."""

from __future__ import annotations

from experiments.programs.kernels import Kernel

KERNELS = (
    Kernel(
        "library sort",
        20_000,
        4_000_000,
        """\
static long $f(long n) {
    std::vector<$type> values(n);
    for (auto &value : values) value = rand_below(1000000);
    std::$sort(values.begin(), values.end());
    return values[n / 3];
}
""",
        {"type": ("int", "long", "double"), "sort": ("sort", "stable_sort")},
        ("vector", "algorithm"),
    ),
    Kernel(
        "words",
        20_000,
        1_500_000,
        """\
static long $f(long n) {
    std::$map<std::string, long> counts;
    for (long i = 0; i < n; i++) counts["w" + std::to_string(rand_below($bound))]++;
    long most = 0;
    for (const auto &entry : counts) most = std::max(most, entry.second);
    return counts.size() + most;
}
""",
        {"map": ("unordered_map", "map"), "bound": ("20", "1000", "100000")},
        ("string", "map", "unordered_map", "algorithm"),
    ),
    Kernel(
        "shortest paths",
        2000,
        250_000,
        """\
static long $f(long n) {
    std::vector<std::vector<std::pair<long, long>>> edges(n);
    for (auto &row : edges)
        for (int e = 0; e < $degree; e++) {
            long other = rand_below(n);
            row.emplace_back(other, 1 + rand_below(50));
        }
    std::vector<long> distance(n, 1000000000);
    std::priority_queue<std::pair<long, long>> heap;
    distance[0] = 0;
    heap.push({0, 0});
    while (!heap.empty()) {
        auto [negative, node] = heap.top();
        heap.pop();
        if (-negative > distance[node]) continue;
        for (auto [other, length] : edges[node])
            if (distance[node] + length < distance[other]) {
                distance[other] = distance[node] + length;
                heap.push({-distance[other], other});
            }
    }
    long total = 0;
    for (long d : distance) total += d < 1000000000 ? d : 0;
    return total;
}
""",
        {"degree": ("3", "8")},
        ("vector", "queue", "utility"),
    ),
    Kernel(
        "matrix product",
        60,
        800,
        """\
static long $f(long n) {
    std::vector<std::vector<$type>> a(n, std::vector<$type>(n)), b = a, c = a;
    for (long i = 0; i < n; i++)
        for (long j = 0; j < n; j++) {
            a[i][j] = rand_below(10);
            b[i][j] = rand_below(10);
        }
    for (long i = 0; i < n; i++)
        for (long j = 0; j < n; j++)
            for (long k = 0; k < n; k++) c[i][j] += a[i][k] * b[k][j];
    return c[0][0] + c[n - 1][n - 1];
}
""",
        {"type": ("int", "float", "double")},
        ("vector",),
    ),
    Kernel(
        "text building",
        50_000,
        6_000_000,
        """\
static long $f(long n) {
    std::string text;
    for (long i = 0; i < n; i++) text += $piece;
    long found = 0;
    for (char letter : text) found += letter == '7';
    return found + text.size();
}
""",
        {"piece": ("std::to_string(i)", "'a' + rand_below(26)", 'i % 3 ? "fizz" : "buzz"')},
        ("string",),
    ),
    Kernel(
        "text search",
        100_000,
        30_000_000,
        """\
static long $f(long n) {
    std::string text(n, 'a'), pattern = "$pattern";
    for (auto &letter : text) letter = 'a' + rand_below($count);
    long found = 0;
    for (size_t at = text.find(pattern); at != std::string::npos; at = text.find(pattern, at + 1)) found++;
    return found;
}
""",
        {"pattern": ("ab", "abba", "aabbab"), "count": ("2", "4", "20")},
        ("string",),
    ),
    Kernel(
        "common subsequence",
        200,
        6000,
        """\
static long $f(long n) {
    std::string a(n, ' '), b(n, ' ');
    for (long i = 0; i < n; i++) {
        a[i] = 'a' + rand_below($letters);
        b[i] = 'a' + rand_below($letters);
    }
    std::vector<std::vector<int>> table(n + 1, std::vector<int>(n + 1));
    for (long i = 0; i < n; i++)
        for (long j = 0; j < n; j++)
            table[i + 1][j + 1] = a[i] == b[j] ? table[i][j] + 1 : std::max(table[i][j + 1], table[i + 1][j]);
    return table[n][n];
}
""",
        {"letters": ("2", "26")},
        ("string", "vector", "algorithm"),
    ),
    Kernel(
        "maze",
        100,
        3000,
        """\
static long $f(long n) {
    std::vector<std::vector<char>> open_cell(n, std::vector<char>(n)), seen = open_cell;
    for (auto &row : open_cell)
        for (auto &cell : row) cell = rand_below(10) < $open;
    std::queue<std::pair<long, long>> waiting;
    waiting.push({0, 0});
    seen[0][0] = 1;
    long visited = 0;
    while (!waiting.empty()) {
        auto [i, j] = waiting.front();
        waiting.pop();
        visited++;
        for (auto [a, b] : {std::pair<long, long>{i + 1, j}, {i - 1, j}, {i, j + 1}, {i, j - 1}})
            if (a >= 0 && b >= 0 && a < n && b < n && open_cell[a][b] && !seen[a][b]) {
                seen[a][b] = 1;
                waiting.push({a, b});
            }
    }
    return visited;
}
""",
        {"open": ("8", "10")},
        ("vector", "queue", "utility"),
    ),
    Kernel(
        "tree",
        10_000,
        1_000_000,
        """\
static long $f(long n) {
    std::$container<long> keys;
    for (long i = 0; i < n; i++) keys.insert(rand_below($bound));
    long total = 0;
    for (long key : keys) total += key % 10;
    return total;
}
""",
        {"container": ("set", "multiset", "unordered_set"), "bound": ("1000", "1000000")},
        ("set", "unordered_set"),
    ),
    Kernel(
        "linked list",
        50_000,
        4_000_000,
        """\
static long $f(long n) {
    std::$container<$type> values;
    for (long i = 0; i < n; i++) values.push_back(rand_below(1000));
    long total = 0;
    for (int pass = 0; pass < $passes; pass++)
        for (auto value : values) total += value;
    return total;
}
""",
        {
            "container": ("list", "deque", "vector"),
            "type": ("int", "double"),
            "passes": ("1", "10"),
        },
        ("list", "deque", "vector"),
    ),
    Kernel(
        "elimination",
        60,
        1000,
        """\
static long $f(long n) {
    std::vector<std::vector<$type>> a(n, std::vector<$type>(n));
    for (long i = 0; i < n; i++)
        for (long j = 0; j < n; j++) a[i][j] = rand_below(1000) / 100.0 + (i == j) * 50;
    for (long k = 0; k < n; k++)
        for (long i = k + 1; i < n; i++) {
            $type factor = a[i][k] / a[k][k];
            for (long j = k; j < n; j++) a[i][j] -= factor * a[k][j];
        }
    $type total = 0;
    for (long i = 0; i < n; i++) total += a[i][i];
    return total;
}
""",
        {"type": ("float", "double")},
        ("vector",),
    ),
    Kernel(
        "life",
        60,
        1200,
        """\
static long $f(long n) {
    std::vector<std::vector<char>> cells(n, std::vector<char>(n)), next = cells;
    for (auto &row : cells)
        for (auto &cell : row) cell = rand_below(3) == 0;
    for (int step = 0; step < $steps; step++) {
        for (long i = 0; i < n; i++)
            for (long j = 0; j < n; j++) {
                int near = -cells[i][j];
                for (int a = -1; a <= 1; a++)
                    for (int b = -1; b <= 1; b++) near += cells[(i + a + n) % n][(j + b + n) % n];
                next[i][j] = near == 3 || (near == 2 && cells[i][j]);
            }
        std::swap(cells, next);
    }
    long alive = 0;
    for (const auto &row : cells)
        for (char cell : row) alive += cell;
    return alive;
}
""",
        {"steps": ("3", "10", "30")},
        ("vector", "utility"),
    ),
    Kernel(
        "primes",
        10_000,
        3_000_000,
        """\
static long $f(long n) {
    std::vector<$type> primes;
    for (long number = 2; number < n; number++) {
        bool prime = true;
        for (size_t i = 0; prime && i < primes.size() && primes[i] * primes[i] <= number; i++)
            prime = number % primes[i] != 0;
        if (prime) primes.push_back(number);
    }
    return primes.size();
}
""",
        {"type": ("int", "long")},
        ("vector",),
    ),
)
