"""Seeded logs and tables of the quickstart, each with its answer.

A maker draws records, works out the answer from the records and prints them as text. The scripts see the text
alone, so an answer and the way a script finds it have nothing in common.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from datetime import date, datetime, timedelta
from fractions import Fraction
from itertools import pairwise
from random import Random
from statistics import median

Files = dict[str, str]
START = datetime(2024, 5, 14, 6, 0, 0)

NAMES = ["aaron", "bianca", "carlos", "dagmar", "edith", "farid", "greta", "hanna", "ivan", "jonas", "katya", "lena"]
CITIES = ["Aachen", "Bremen", "Chemnitz", "Dresden", "Essen", "Freiburg"]


def rows_text(header: str, rows: Iterable[tuple[object, ...]], separator: str = ",") -> str:
    return "\n".join([header, *(separator.join(str(cell) for cell in row) for row in rows)]) + "\n"


def moments(rng: Random, count: int, low_seconds: int, high_seconds: int) -> list[datetime]:
    """Rising times, each `low_seconds` to `high_seconds` after the one before."""
    now, times = START, []
    for _ in range(count):
        now += timedelta(seconds=rng.randint(low_seconds, high_seconds))
        times.append(now)
    return times


def slowest_endpoint() -> tuple[Files, str]:
    """The path with the highest mean time among those with at least five requests (a rare path is slower still)."""
    rng = Random(101)
    typical = {"/": 12, "/search": 140, "/api/orders": 95, "/api/invoices": 210, "/login": 60, "/static/app.css": 4}
    lines, millis = [], defaultdict(list)
    for when in moments(rng, 96, 2, 40):
        path = rng.choice(list(typical))
        took = max(1, round(rng.gauss(typical[path], typical[path] / 4)))
        if rng.random() < 0.025:
            path, took = "/admin/reindex", rng.randint(1500, 2500)
        millis[path].append(took)
        status = rng.choices([200, 304, 404, 500], [90, 5, 3, 2])[0]
        client = f"10.0.{rng.randint(0, 3)}.{rng.randint(2, 60)}"
        stamp = when.strftime("%d/%b/%Y:%H:%M:%S +0000")
        lines.append(f'{client} - - [{stamp}] "GET {path} HTTP/1.1" {status} {rng.randint(200, 9000)} {took}ms')
    assert 0 < len(millis["/admin/reindex"]) < 5
    means = {path: sum(times) / len(times) for path, times in millis.items() if len(times) >= 5}
    return {"access.log": "\n".join(lines) + "\n"}, max(means, key=lambda path: means[path])


def failed_requests() -> tuple[Files, str]:
    """Distinct request ids with at least one ERROR line; a request may log several."""
    rng = Random(102)
    lines, failed = [], set()
    for when in moments(rng, 70, 1, 25):
        request = f"req-{rng.randint(1000, 1045)}"
        level = rng.choices(["INFO", "WARN", "ERROR"], [70, 12, 18])[0]
        message = {
            "INFO": rng.choice(["order accepted", "cache refreshed", "payment booked"]),
            "WARN": rng.choice(["ERROR budget is low", "slow reply from warehouse"]),
            "ERROR": rng.choice(["warehouse timed out", "payment refused", "stock is negative"]),
        }[level]
        if level == "ERROR":
            failed.add(request)
        entry = {"time": when.isoformat(), "level": level, "request": request, "message": message}
        lines.append(json.dumps(entry))
    return {"app.jsonl": "\n".join(lines) + "\n"}, str(len(failed))


def error_burst() -> tuple[Files, str]:
    """The minute with the most ERROR lines, as HH:MM."""
    rng = Random(103)
    times = moments(rng, 110, 2, 20)
    burst = times[61].replace(second=0)
    times += [burst + timedelta(seconds=rng.randint(0, 59)) for _ in range(9)]
    errors: Counter[str] = Counter()
    lines = []
    for number, when in enumerate(sorted(times)):
        inside = when.replace(second=0) == burst
        level = rng.choices(["INFO", "WARNING", "ERROR"], [5, 15, 80] if inside else [76, 14, 10])[0]
        if level == "ERROR":
            errors[when.strftime("%H:%M")] += 1
        text = {"INFO": "batch written", "WARNING": "queue is long", "ERROR": "connection to replica lost"}[level]
        lines.append(f"{when.isoformat(sep=' ')} [{level}] writer-{rng.randint(1, 4)} #{number:04d}: {text}")
    (minute, most), (_, second) = errors.most_common(2)
    assert most > second
    return {"writer.log": "\n".join(lines) + "\n"}, minute


def failed_then_in() -> tuple[Files, str]:
    """Users with a successful login at some time after a failed one of the same user."""
    rng = Random(104)
    lines, failed, through = [], set(), set()
    for when in moments(rng, 90, 5, 90):
        user = rng.choice(NAMES)
        good = rng.random() < (0.75 if user < "f" else 0.3)
        if user in ("greta", "ivan"):
            good = user == "greta"
        if good and user in failed:
            through.add(user)
        if not good:
            failed.add(user)
        verdict = "accepted" if good else "rejected (bad password)"
        lines.append(f"{when:%b %d %H:%M:%S} gate auth[412]: login user={user} tty=web{rng.randint(1, 9)} {verdict}")
    return {"auth.log": "\n".join(lines) + "\n"}, str(len(through))


def brute_force() -> tuple[Files, str]:
    """The address with the most failed passwords over two log files; the first file alone suggests another."""
    rng = Random(105)
    addresses = ["203.0.113.9", "198.51.100.23", "203.0.113.77", "192.0.2.14", "198.51.100.4"]
    failures: Counter[str] = Counter()
    files = {}
    for name, weights, age_days in (("auth.log.1", [2, 12, 3, 3, 2], 1), ("auth.log", [11, 2, 3, 2, 9], 0)):
        lines = []
        for moment in moments(rng, 48, 3, 60):
            when = moment - timedelta(days=age_days)
            address = rng.choices(addresses, weights)[0]
            user = rng.choice(["root", "admin", "git", *NAMES[:4]])
            port = rng.randint(30000, 60000)
            if rng.random() < 0.8:
                failures[address] += 1
                what = f"Failed password for {user} from {address} port {port} ssh2"
            else:
                what = f"Accepted publickey for {user} from {address} port {port} ssh2"
            lines.append(f"{when:%b %d %H:%M:%S} host sshd[{rng.randint(800, 999)}]: {what}")
        files[name] = "\n".join(lines) + "\n"
    (worst, most), (_, second) = failures.most_common(2)
    assert most > second
    return files, worst


def heartbeat_gap() -> tuple[Files, str]:
    """The longest pause in whole seconds between two heartbeats of worker w3."""
    rng = Random(106)
    beats: list[tuple[datetime, str]] = []
    for worker in ("w1", "w2", "w3", "w4"):
        now = START + timedelta(seconds=rng.randint(0, 20))
        for _ in range(26):
            beats.append((now, worker))
            now += timedelta(seconds=rng.randint(25, 40) if rng.random() < 0.9 else rng.randint(60, 190))
    mine = sorted(when for when, worker in beats if worker == "w3")
    gap = max((late - early).seconds for early, late in pairwise(mine))
    lines = [f"{when.isoformat()}Z {worker} heartbeat load={rng.uniform(0, 4):.2f}" for when, worker in sorted(beats)]
    return {"beats.log": "\n".join(lines) + "\n"}, str(gap)


def biggest_client() -> tuple[Files, str]:
    """Bytes fetched with status 200 by the client who fetched most; other statuses do not count."""
    rng = Random(107)
    volume: Counter[str] = Counter()
    lines = []
    for when in moments(rng, 85, 3, 50):
        client = rng.choice(["alpha", "bravo", "cargo", "delta", "eagle"])
        status = rng.choices([200, 206, 403], [7, 2, 1])[0]
        size = rng.randint(800, 4_000_000)
        if status == 200:
            volume[client] += size
        lines.append(
            f"{when.isoformat()}\t{client}\t/pkg/{rng.choice(NAMES)}-{rng.randint(1, 9)}.tgz\t{status}\t{size}"
        )
    return {"cdn.tsv": "time\tclient\tpath\tstatus\tbytes\n" + "\n".join(lines) + "\n"}, str(max(volume.values()))


def order_trace() -> tuple[Files, str]:
    """The service that logged the first failure of order A-1077, over three logs with one trace id each."""
    rng = Random(108)
    orders = {f"A-{1060 + number}": f"{rng.getrandbits(32):08x}" for number in range(22)}
    broken = {"A-1077": "stock", "A-1064": "billing", "A-1071": "gateway"}
    logs: dict[str, list[tuple[datetime, str]]] = {"gateway": [], "stock": [], "billing": []}
    for when, (order, trace) in zip(moments(rng, 22, 20, 60), orders.items(), strict=True):
        logs["gateway"].append((when, f"INFO trace={trace} order={order} received"))
        failed = False
        for step, service in enumerate(("gateway", "stock", "billing")):
            at = when + timedelta(seconds=step + 1)
            if broken.get(order) == service:
                failed = True
                logs[service].append((at, f"FAIL trace={trace} internal error, rolling back"))
            elif failed:
                logs[service].append((at, f"FAIL trace={trace} upstream failed"))
            else:
                logs[service].append((at, f"INFO trace={trace} step done in {rng.randint(3, 80)} ms"))
        if failed:
            logs["gateway"].append((when + timedelta(seconds=4), f"FAIL trace={trace} answered 502"))
    files = {}
    for service, entries in logs.items():
        files[f"logs/{service}.log"] = "".join(f"{at.isoformat()} {text}\n" for at, text in sorted(entries))
    return files, broken["A-1077"]


def unfinished_jobs() -> tuple[Files, str]:
    """Ids of jobs whose last attempt neither finished nor was given up, in ascending order."""
    rng = Random(109)
    events: list[tuple[datetime, str]] = []
    hanging = []
    for number, when in enumerate(moments(rng, 34, 10, 50), start=301):
        fate = rng.choices(["done", "retry", "abandoned", "hangs", "retry-hangs"], [14, 6, 3, 3, 3])[0]
        events.append((when, f"job={number} attempt=1 started"))
        later = when + timedelta(seconds=rng.randint(20, 200))
        if fate.startswith("retry"):
            events.append((later, f"job={number} attempt=1 failed: exit code {rng.randint(1, 3)}"))
            events.append((later + timedelta(seconds=5), f"job={number} attempt=2 started"))
            later += timedelta(seconds=rng.randint(20, 90))
        if fate in ("done", "retry"):
            events.append((later, f"job={number} attempt={2 if fate == 'retry' else 1} finished"))
        elif fate == "abandoned":
            events.append((later, f"job={number} attempt=1 given up"))
        else:
            hanging.append(number)
    lines = [f"{when:%H:%M:%S} scheduler: {text}" for when, text in sorted(events)]
    return {"jobs.log": "\n".join(lines) + "\n"}, ",".join(map(str, hanging))


def cache_ratio() -> tuple[Files, str]:
    """Percentage of hits among look-ups of user keys, one decimal."""
    rng = Random(110)
    lines, hits, lookups = [], 0, 0
    for number in range(140):
        space = rng.choice(["user", "item", "users_index"])
        verb = rng.choices(["HIT", "MISS", "SET", "DEL"], [5, 3, 2, 1])[0]
        if space == "user" and verb in ("HIT", "MISS"):
            lookups += 1
            hits += verb == "HIT"
        key = f"{space}:{rng.randint(1, 40)}"
        lines.append(f"{number:05d} {verb:<4} {key:<16} {rng.randint(20, 900)}us node{rng.randint(1, 3)}")
    return {"cache.log": "\n".join(lines) + "\n"}, f"{100 * hits / lookups:.1f}"


def region_sum() -> tuple[Files, str]:
    """Revenue of the region North without cancelled orders, in cents of a decimal amount."""
    rng = Random(201)
    rows, cents = [], 0
    for number in range(190):
        region = rng.choice(["North", "South", "East", "West"])
        state = rng.choices(["shipped", "open", "cancelled"], [7, 2, 1])[0]
        amount = rng.randint(499, 39999)
        if region == "North" and state != "cancelled":
            cents += amount
        rows.append((7000 + number, region, rng.choice(NAMES), state, f"{amount / 100:.2f}"))
    return {"orders.csv": rows_text("order,region,agent,state,amount", rows)}, f"{cents / 100:.2f}"


def best_city() -> tuple[Files, str]:
    """The city with the highest revenue, by a join of two files; some orders name an unknown customer."""
    rng = Random(202)
    customers = [(f"C{number:03d}", name.title(), rng.choice(CITIES)) for number, name in enumerate(NAMES * 2, start=1)]
    city_of = {key: city for key, _, city in customers}
    revenue: Counter[str] = Counter()
    orders = []
    for number in range(240):
        key = rng.choice([*city_of, "C099"])
        quantity, price = rng.randint(1, 9), rng.randint(5, 80)
        if key in city_of:
            revenue[city_of[key]] += quantity * price
        orders.append((number + 1, key, quantity, price))
    (city, most), (_, second) = revenue.most_common(2)
    assert most > second
    files = {
        "customers.csv": rows_text("customer_id,name,city", customers),
        "orders.csv": rows_text("order_id,customer_id,quantity,unit_price", orders),
    }
    return files, city


def median_salary() -> tuple[Files, str]:
    """The department with the highest median salary and that median; one outlier misleads the mean."""
    rng = Random(203)
    base = {"Research": 5200, "Sales": 4100, "Support": 3300, "Operations": 3900}
    salaries: dict[str, list[int]] = defaultdict(list)
    rows = []
    for number in range(170):
        department = rng.choice(list(base))
        salary = rng.randrange(base[department] - 900, base[department] + 900, 50)
        if number in (10, 40):
            department, salary = "Sales", 48_000
        salaries[department].append(salary)
        rows.append((1000 + number, rng.choice(NAMES).title(), department, rng.randint(2009, 2024), salary))
    best = max(salaries, key=lambda name: median(salaries[name]))
    files = {"staff.csv": rows_text("id,name,department,since,salary", rows)}
    return files, f"{best} {float(median(salaries[best])):g}"


def top_products() -> tuple[Files, str]:
    """The three products with the highest turnover; semicolons and decimal commas."""
    rng = Random(204)
    prices = {
        name: rng.randint(199, 4999) for name in ["lamp", "chair", "desk", "shelf", "rug", "clock", "vase", "stool"]
    }
    turnover: Counter[str] = Counter()
    rows = []
    for number in range(220):
        product = rng.choice(list(prices))
        quantity = rng.randint(1, 12)
        turnover[product] += quantity * prices[product]
        day = date(2024, 3, 1) + timedelta(days=number // 4)
        rows.append((day.isoformat(), product, quantity, f"{prices[product] / 100:.2f}".replace(".", ",")))
    top = [product for product, _ in turnover.most_common(3)]
    return {"sales.csv": rows_text("Datum;Artikel;Menge;Preis", rows, ";")}, ",".join(top)


def distinct_emails() -> tuple[Files, str]:
    """Distinct addresses over two exports, ignoring case, blanks and everything from a plus sign to the at sign."""
    rng = Random(205)
    people = [f"{first}.{last}" for first in NAMES for last in ("berg", "stein", "wolff", "huber", "novak")]
    seen = set()
    files = {}
    for name in ("spring.csv", "autumn.csv"):
        rows = []
        for number in range(90):
            person = rng.choice(people)
            host = "example.org" if len(person) % 2 else "example.com"
            seen.add(f"{person}@{host}")
            text = person + rng.choice(["", "", "", "+news", "+shop"]) + "@" + host
            text = rng.choice([text, text, text.title(), text.upper(), f" {text} "])
            rows.append((number + 1, text, rng.choice(["yes", "no"])))
        files[name] = rows_text("nr,email,consent", rows)
    return files, str(len(seen))


def missing_hours() -> tuple[Files, str]:
    """The sensor with the most missing values (no row at all, or an empty or NA value) over two days of hours."""
    rng = Random(206)
    missing: Counter[str] = Counter()
    rows = []
    rates = {"attic": (0.05, 0.1), "cellar": (0.25, 0.03), "garden": (0.02, 0.18)}
    for hour in range(48):
        for sensor, (absent, empty) in rates.items():
            chance = rng.random()
            when = (START.replace(hour=0) + timedelta(hours=hour)).strftime("%Y-%m-%dT%H:00")
            if chance < absent:
                missing[sensor] += 1
            elif chance < absent + empty:
                missing[sensor] += 1
                rows.append((when, sensor, rng.choice(["", "NA"]), "C"))
            else:
                rows.append((when, sensor, f"{rng.uniform(2, 28):.1f}", "C"))
    (sensor, most), (_, second) = missing.most_common(2)
    assert most > second
    return {"readings.csv": rows_text("time,sensor,value,unit", rows)}, f"{sensor} {most}"


def second_quarter() -> tuple[Files, str]:
    """The sum of amounts dated April to June 2024; dates come in three formats."""
    rng = Random(207)
    rows, total = [], 0
    for number in range(200):
        day = date(2023, 11, 1) + timedelta(days=rng.randint(0, 400))
        amount = rng.randint(10, 990)
        if day.year == 2024 and 4 <= day.month <= 6:
            total += amount
        shown = day.strftime(rng.choice(["%Y-%m-%d", "%d.%m.%Y", "%b %d %Y"]))
        rows.append((f"T{number:03d}", shown, rng.choice(["card", "cash", "transfer"]), amount))
    return {"payments.csv": rows_text("id,date,method,amount", rows)}, str(total)


def first_negative() -> tuple[Files, str]:
    """The movement number at which an article's stock first falls below zero, starting from opening.csv."""
    rng = Random(208)
    articles = ["bolt", "nut", "washer", "screw", "hinge"]
    stock = {article: rng.randint(20, 60) for article in articles}
    opening = list(stock.items())
    rows: list[tuple[object, ...]] = []
    culprit = ""
    for number in range(1, 181):
        article = rng.choice(articles)
        kind = rng.choices(["out", "in"], [55, 45])[0]
        quantity = rng.randint(1, 18)
        stock[article] += quantity if kind == "in" else -quantity
        if stock[article] < 0 and not culprit:
            culprit = f"{number} {article}"
        rows.append((number, (date(2024, 2, 1) + timedelta(days=number // 4)).isoformat(), article, kind, quantity))
    assert culprit
    files = {
        "opening.csv": rows_text("article,stock", opening),
        "movements.csv": rows_text("nr,date,article,kind,quantity", rows),
    }
    return files, culprit


def passing_students() -> tuple[Files, str]:
    """Students who pass: weighted mean of at least 60 and no exam below 35; a missing exam counts as zero."""
    rng = Random(209)
    weights = {"homework": 2, "midterm": 3, "final": 5}
    rows: list[tuple[object, ...]] = []
    scores: defaultdict[str, dict[str, int]] = defaultdict(dict)
    students = [f"{first}-{number}" for number, first in enumerate(NAMES * 5, start=10)]
    for student in students:
        for exam in weights:
            if rng.random() < 0.9:
                scores[student][exam] = rng.randint(30, 100)
                rows.append((student, exam, scores[student][exam]))
    rng.shuffle(rows)
    passed = 0
    for student in students:
        points = {exam: scores[student].get(exam, 0) for exam in weights}
        mean = Fraction(sum(points[exam] * weight for exam, weight in weights.items()), sum(weights.values()))
        passed += mean >= 60 and min(points.values()) >= 35
    files = {
        "scores.csv": rows_text("student,exam,points", rows),
        "weights.csv": rows_text("exam,weight", list(weights.items())),
    }
    return files, str(passed)


def quoted_comments() -> tuple[Files, str]:
    """The mean stars, two decimals, of reviews whose comment mentions the battery; comments hold commas and quotes."""
    rng = Random(210)
    openings = ["Works, mostly", 'They call it "silent"', "Arrived late, sadly", "Good value", "Hmm, not sure"]
    endings = ["the battery is weak", "Battery, screen and case are fine", "no complaints", "the colour is off", "meh"]
    lines, stars = ["id,stars,comment,country"], []
    for number in range(95):
        star, comment = rng.randint(1, 5), f"{rng.choice(openings)}; {rng.choice(endings)}"
        if "battery" in comment.lower():
            stars.append(star)
        quoted = comment.replace('"', '""')
        lines.append(f'{number + 1},{star},"{quoted}",{rng.choice(["DE", "FR", "PL", "IT"])}')
    return {"reviews.csv": "\n".join(lines) + "\n"}, f"{sum(stars) / len(stars):.2f}"


GENERATED: dict[str, Callable[[], tuple[Files, str]]] = {
    "log-slowest-endpoint-01": slowest_endpoint,
    "log-failed-requests-02": failed_requests,
    "log-error-burst-03": error_burst,
    "log-failed-then-in-04": failed_then_in,
    "log-brute-force-05": brute_force,
    "log-heartbeat-gap-06": heartbeat_gap,
    "log-biggest-client-07": biggest_client,
    "log-order-trace-08": order_trace,
    "log-unfinished-jobs-09": unfinished_jobs,
    "log-cache-ratio-10": cache_ratio,
    "csv-region-sum-01": region_sum,
    "csv-best-city-02": best_city,
    "csv-median-salary-03": median_salary,
    "csv-top-products-04": top_products,
    "csv-distinct-emails-05": distinct_emails,
    "csv-missing-hours-06": missing_hours,
    "csv-second-quarter-07": second_quarter,
    "csv-first-negative-08": first_negative,
    "csv-passing-students-09": passing_students,
    "csv-quoted-comments-10": quoted_comments,
}
