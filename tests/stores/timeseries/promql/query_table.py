"""Queries over every function and operator."""

from __future__ import annotations

RANGE_FUNCTIONS = [
    *("rate", "irate", "increase", "delta", "idelta", "deriv", "resets", "changes"),
    *(f"{each}_over_time" for each in ("sum", "avg", "min", "max", "count", "stddev", "stdvar")),
    *(f"{each}_over_time" for each in ("last", "present", "absent")),
]
MATHEMATICS = [
    *("abs", "ceil", "floor", "exp", "ln", "log2", "log10", "sqrt", "sgn", "round"),
    *("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh"),
    *("asinh", "acosh", "atanh", "deg", "rad"),
]
CALENDAR = [
    *("minute", "hour", "day_of_week", "day_of_month", "day_of_year", "days_in_month"),
    *("month", "year"),
]
AGGREGATIONS = ["sum", "avg", "min", "max", "count", "group", "stddev", "stdvar"]
ARITHMETIC = ["+", "-", "*", "/", "%", "^", "atan2"]
COMPARISONS = ["==", "!=", "<", "<=", ">", ">="]

SELECTORS = r"""
load
load{job="api"}
load{job!="api"}
load{instance=~"a|b"}
load{instance!~"a|b"}
load{instance=~".+",job=~"a.*"}
load{missing=""}
load{missing!=""}
{__name__=~"lo.*"}
{__name__="load",job="web"}
nothing
load{job=~`[[:alpha:]]\w+`}
load{job=~"\\Qapi\\E"}
load{job=~"\\141pi"}
load{job=~'[\\d-z]+'}
load{job="\x61\160\u0069"}
load{job!~`a\w*`,instance=~`a|b`}
load{instance="`"}
load{instance="'",job='"'}
load # a comment with a "
{job!=""}
{job!~".*"}
{job!~".+"}
{job=~"x*"}
load{job=~"a{1001}"}
load{job=~"(?x) a"}
load @ -5
load @ -1.5 offset -28333333m
load @ 1e12
load @ 1e300
load @ Inf
load offset 293y
load offset 5m
load offset -5m
load offset 1h
load @ 1699999200
load @ start()
load @ end()
load @ end() offset 3m
requests_total
strange
once
once offset 3m
""".strip().splitlines()

FUNCTIONS = [
    *(f"{name}(requests_total[5m])" for name in RANGE_FUNCTIONS),
    *(f"{name}(load[90s])" for name in RANGE_FUNCTIONS),
    *(f"{name}(strange[4m])" for name in RANGE_FUNCTIONS),
    *(f"{name}(constant[4m] offset 1m)" for name in RANGE_FUNCTIONS),
    *(f"{name}(once[10m])" for name in RANGE_FUNCTIONS),
    *(f"{name}(nothing[10m])" for name in RANGE_FUNCTIONS),
    *(f"{name}(huge[5m])" for name in RANGE_FUNCTIONS if name.endswith("_over_time")),
    *(f"{name}(load[5m] @ end())" for name in RANGE_FUNCTIONS),
    *(f"{name}(load)" for name in MATHEMATICS),
    *(f"{name}(load / 300)" for name in MATHEMATICS),
    *(f"{name}(strange)" for name in MATHEMATICS),
    *(f"{name}(huge)" for name in MATHEMATICS),
    *(f"{name}()" for name in CALENDAR),
    *(f"{name}(timestamp(load) * 3.7)" for name in CALENDAR),
    *(f"{name}(load * -1e6)" for name in CALENDAR),
    *(f"{name}(load)" for name in AGGREGATIONS),
    *(f"{name} by (job) (load)" for name in AGGREGATIONS),
    *(f"{name} without (instance) (load)" for name in AGGREGATIONS),
    *(f"{name} by (kind) (strange)" for name in AGGREGATIONS),
    *(f"{name} (strange)" for name in AGGREGATIONS),
    *(f"{name} by (__name__, none) (load or up)" for name in AGGREGATIONS),
]

OPERATORS = [
    *(f"load {operator} 3" for operator in ARITHMETIC),
    *(f"3 {operator} load" for operator in ARITHMETIC),
    *(f"load {operator} on (job, instance) up" for operator in ARITHMETIC),
    *(f"load {operator} up" for operator in ARITHMETIC),
    *(f"strange {operator} strange" for operator in ARITHMETIC),
    *(f"7 {operator} 0" for operator in ARITHMETIC),
    *(f"load {operator} 20" for operator in COMPARISONS),
    *(f"20 {operator} load" for operator in COMPARISONS),
    *(f"load {operator} bool 20" for operator in COMPARISONS),
    *(f"20 {operator} bool load" for operator in COMPARISONS),
    *(f"2 {operator} bool 3" for operator in COMPARISONS),
    *(f"strange {operator} strange" for operator in COMPARISONS),
    *(f"strange {operator} bool strange" for operator in COMPARISONS),
    *(f"load {operator} on (job) group_left limit" for operator in COMPARISONS),
    *(f"up {operator} on (instance) load{{job='api'}}" for operator in COMPARISONS),
    *(
        f"{left} {operator} {right}"
        for operator in ("and", "or", "unless")
        for left, right in [
            ("load", "up"),
            ("load", "up == 1"),
            ("load > 0", "up == 1"),
            ("load", "on (job) limit == 1"),
            ("load", "ignoring (instance, team) limit == 1"),
            ("load", "nothing"),
            ("nothing", "load"),
            ("load", "on () once"),
            ("sum(load)", "load"),
        ]
    ),
]

OTHERS = r"""
1
-1
"text"
1 + 2 * 3 ^ 2 % 5
-load
-(load > 0)
-2 ^ 2
+load
2 ^ 3 ^ 2
Inf
NaN
0x1F
time()
time() - 1699999200
pi()
vector(3)
vector(time())
scalar(once)
scalar(load)
scalar(nothing)
scalar(load{job="api",instance="a"}) + load
timestamp(load)
timestamp(load offset 5m)
timestamp(load @ end())
timestamp(load + 1)
timestamp((load))
timestamp(timestamp(load))
absent(load)
absent(nothing)
absent(nothing{a="b",c!="d",e=~"f",g=""})
absent(nothing{a="b",a="c"})
absent(once)
absent(sum(nothing))
absent_over_time(nothing{a="b"}[5m])
absent_over_time(once[5m])
absent_over_time(once{kind="single"}[3m:1m])
present_over_time(once[3m])
clamp(load, -20, 30)
clamp(load, 30, -20)
clamp(load, NaN, 3)
clamp_min(load, 10)
clamp_max(load, 10)
clamp_max(load, scalar(up{job="api",instance="a"}))
clamp_min(strange, 1)
clamp_min(strange, NaN)
clamp_max(strange, NaN)
clamp(strange, NaN, 3)
clamp(strange, -Inf, NaN)
clamp(strange, NaN, Inf)
scalar(strange)
scalar(strange{kind="both"})
round(load, 5)
round(load, 0.3)
round(load, 0)
sort(load)
sort_desc(load)
sort(strange)
topk(2, load)
topk(2, load) by (job)
topk by (job) (1, load)
topk(0, load)
topk(-1, load)
topk(100, load)
topk(2.9, load)
topk(scalar(up{job="api",instance="a"}), load)
topk(NaN, load)
topk(NaN, nothing)
topk(scalar(once), load)
topk(scalar(nothing), nothing)
topk(2, strange)
bottomk(2, load)
bottomk(4, strange)
bottomk by (job) (1, load)
bottomk without (instance) (2, load)
quantile(0.5, load)
quantile by (job) (0.9, load)
quantile(0, load)
quantile(1, load)
quantile(-1, load)
quantile(2, load)
quantile(NaN, load)
quantile(0.3, strange)
quantile(scalar(up{job="api",instance="a"}) / 2, load)
quantile_over_time(0.5, load[5m])
quantile_over_time(0.99, requests_total[5m])
quantile_over_time(-1, load[5m])
quantile_over_time(1.1, load[5m])
quantile_over_time(0.4, strange[5m])
quantile_over_time(scalar(up{job="api",instance="a"}) / 2, load[5m])
count_values("value", up)
count_values by (job) ("value", up)
count_values without (instance) ("job", up)
count_values("v", strange)
count_values("v", load)
count_values("bad-name", load)
count_values("", load)
count_values("bad-name", nothing)
count_values("v", load * 1e20)
count_values("v", load / 1e20)
predict_linear(load[5m], 600)
predict_linear(requests_total[5m] offset 2m, 60)
predict_linear(constant[5m], 60)
predict_linear(strange[5m], 60)
deriv(load[5m] @ 1699999900)
holt_winters(load[5m], 0.3, 0.6)
holt_winters(requests_total[5m] offset 1m, 0.01, 0.99)
holt_winters(strange[5m], 0.5, 0.5)
holt_winters(once[5m], 0.5, 0.5)
holt_winters(load[30s], 0.5, 0.5)
holt_winters(load[5m], 0, 0.5)
holt_winters(load[5m], 0.5, 1)
holt_winters(load[5m], NaN, 0.5)
holt_winters(nothing[5m], 2, 2)
rate(requests_total[5m] @ 1699999900 offset 1m)
rate(requests_total[5m] offset -1m)
rate(requests_total[30s])
rate(requests_total[1s])
rate(requests_total[1h])
histogram_quantile(0.9, rate(latency_bucket[5m]))
histogram_quantile(0.5, sum by (le) (rate(latency_bucket[5m])))
histogram_quantile(0.5, sum by (le, job) (rate(latency_bucket[5m])))
histogram_quantile(0, latency_bucket)
histogram_quantile(1, latency_bucket)
histogram_quantile(-0.1, latency_bucket)
histogram_quantile(1.1, latency_bucket)
histogram_quantile(NaN, latency_bucket)
histogram_quantile(0.3, latency_bucket{le!="+Inf"})
histogram_quantile(0.3, latency_bucket{le="+Inf"})
histogram_quantile(0.3, latency_bucket{le!="0.1"})
histogram_quantile(0.3, load)
histogram_quantile(0.3, label_replace(latency_bucket, "le", "1", "le", "0.5"))
histogram_quantile(0.3, label_replace(latency_bucket{le=~"1|.Inf"}, "le", "-1", "le", "1"))
histogram_quantile(0.3, label_replace(latency_bucket, "le", "odd", "le", "0.5"))
histogram_quantile(scalar(up{job="api",instance="a"}) / 2, latency_bucket)
label_replace(load, "new", "$1-x", "job", "(.*)")
label_replace(load, "new", "$1$2", "job", "(.)(.*)")
label_replace(load, "new", "${rest}!", "job", "(?P<first>.)(?P<rest>.*)")
label_replace(load, "new", "$$1", "job", "(.*)")
label_replace(load, "new", "$1x", "job", "(.*)")
label_replace(load, "new", "a\\b", "job", "(.*)")
label_replace(load, "new", "$3", "job", "(.*)")
label_replace(load, "new", "x", "job", "ap")
label_replace(load, "new", "x", "missing", "")
label_replace(load, "job", "", "job", "api")
label_replace(load, "instance", "", "instance", ".*")
label_replace(load, "__name__", "other", "job", ".*")
label_replace(load, "bad name", "x", "job", ".*")
label_replace(load, "new", "x", "job", "(")
label_replace(nothing, "new", "x", "job", "(")
label_replace(load, "new", "$1-$2", "job", "a(.*)|(w)eb")
label_replace(load, "new", "x", "job", "ap)|(eb")
label_replace(load, "new", `\$1`, "job", `(\w)\w+`)
label_join(load, "new", "-", "job", "instance")
label_join(load, "new", "-")
label_join(load, "new", "-", "missing", "job")
label_join(load, "job", "", "missing")
label_join(load, "bad name", "-", "job")
label_join(load, "new", "-", "bad name")
max_over_time(load[5m:1m])
max_over_time(load[5m:])
sum_over_time(rate(requests_total[2m])[10m:30s])
avg_over_time((load > 0)[5m:30s] offset 1m)
sum_over_time(load[5m:1m] @ end())
sum_over_time((load @ end())[5m:1m])
sum_over_time(load[3m:45s] @ 1699999900 offset 1m)
rate(requests_total[10m:1m])
max_over_time(sum_over_time(load[2m:30s])[5m:1m])
sum_over_time(vector(time())[5m:77s])
last_over_time(load[5m:1m])
predict_linear(load[5m:1m], 60)
timestamp(load)[5m:1m]
load[2m]
load[2m] offset 1m
load[2m:30s]
strange[5m]
requests_total[10m] @ 1700000400
load + on (job) limit
load + on (job) group_left limit
load * on (job) group_left (team) limit
load * on (job) group_left (missing) limit
limit * on (job) group_right (team) load
limit * on (job) group_right load
limit - on (job) group_right () load
limit / ignoring (instance, team) group_right load
limit + on (job) load
load + on (instance) up
load + on (instance) group_left up
load + ignoring (instance) up
load + ignoring (job) group_left up
load + on () once
load + ignoring (job, instance, kind) once
load * on (job) group_left (instance) limit
up == bool on (job, instance) load
load > on (job) group_left limit
load > bool on (job) group_left (team) limit
sum(load) / sum(up)
sum by (job) (load) / on (job) limit
sum by (job) (rate(requests_total[5m])) / ignoring (team) limit
(load > 100) + (load < 200)
load + nothing
nothing + load
strange and on (kind) (strange > 1)
{job="api"} + 1
abs({job="api"})
-{job="api"}
sum({job="api"}) by (__name__)
rate({job="api"}[5m])
last_over_time({job="api"}[5m])
topk(1, {job="api"}) by (job)
load{job="api"} or load{job="web"} or up
(load or up) + 1
sum(load or up)
sum without () (load)
sum by () (load)
count(count by (job, instance) ({job=~".+"}))
sum(sum by (job) (load) > 10)
avg(load) by (instance) - min(load) by (instance)
1 - avg by (instance) (irate(requests_total[5m]))
delta(load[5m]) > 0
sgn(load) * load
exp(load / 100) % 7
load % -3
-load % 3
load ^ 2 ^ 0.5
strange ^ 0.5
strange ^ -0.5
(load) + (up)
((load))
minute(vector(1136239445))
day_of_month(vector(-1))
days_in_month(vector(1582934400))
year(vector(4e9))
""".strip().splitlines()

QUERIES = list(dict.fromkeys([*SELECTORS, *FUNCTIONS, *OPERATORS, *OTHERS]))

AT_ONE_MOMENT = [
    "predict_linear(load[5m] @ 1699999900, 600)",
    "predict_linear(load[5m] @ end(), 600)",
    "predict_linear(load[5m:1m] @ end(), 60)",
]
"""In a range query, Prometheus moves these windows with the steps, though they are fixed."""
