"""What the CONCUR paper (arXiv 2601.22705) tells: the figures of its tables, and where they do not agree. Pure.

Rows and systems have the names of `cells`; a figure that the paper does not give is absent.
"""

from __future__ import annotations

from collections.abc import Mapping

Figures = Mapping[str, Mapping[str, float]]

# Seconds to finish the batch. 2530 follows from its speed-up, 2.99 x 846.
TABLE_1: Figures = {
    "qwen3-32b-tp8": {"none": 1480, "request_cap": 2049, "hicache": 976, "concur": 362},
    "qwen3-32b-tp4": {"none": 2213, "request_cap": 1089, "hicache": 1678, "concur": 757},
    "qwen3-32b-tp2": {"none": 2530, "hicache": 1112, "concur": 846},
    "deepseek-v3-16": {"none": 873, "hicache": 2559, "concur": 521},
    "deepseek-v3-32": {"none": 1226, "request_cap": 1367, "hicache": 2277, "concur": 1018},
    "deepseek-v3-40": {"none": 3877, "hicache": 2320, "concur": 2043},
}

# Shares of prompt tokens that were found cached, in any tier.
TABLE_2: Figures = {
    "deepseek-v3-16": {"none": 0.8038, "hicache": 0.9748, "request_cap": 0.6900, "concur": 0.9638},
    "deepseek-v3-32": {"none": 0.7772, "hicache": 0.9713, "request_cap": 0.6839, "concur": 0.9365},
    "deepseek-v3-40": {"none": 0.3541, "hicache": 0.9608, "request_cap": 0.3221, "concur": 0.7336},
}

# Seconds, with one threshold changed.
U_HIGH: Figures = {
    "qwen3-32b-tp8": {"u_high 0.4": 529, "concur": 362, "u_high 0.6": 386, "u_high 0.8": 1898},
    "qwen3-32b-tp4": {"u_high 0.4": 1089, "concur": 757, "u_high 0.6": 775, "u_high 0.8": 2300},
    "qwen3-32b-tp2": {"u_high 0.4": 1390, "concur": 846, "u_high 0.6": 945, "u_high 0.8": 2498},
}
U_LOW: Figures = {
    "qwen3-32b-tp8": {"u_low 0.1": 2894, "concur": 362, "u_low 0.3": 779, "u_low 0.5": 2763},
    "qwen3-32b-tp4": {"u_low 0.1": 2561, "concur": 757, "u_low 0.3": 1566, "u_low 0.5": 2245},
    "qwen3-32b-tp2": {"u_low 0.1": 972, "concur": 846, "u_low 0.3": 1008, "u_low 0.5": 1451},
}

# Of the fixed windows the paper gives no seconds, only that adaptive is 1.5 to 2.9 times faster.
WINDOWS: Figures = {"qwen3-32b-tp2": {"concur": 846}}

# Shares of end-to-end time.
DECOMPOSITION: Mapping[str, float] = {"tool": 0.177, "decode": 0.271, "first prefill": 0.061, "recomputation": 0.491}

# Bytes that it says one DeepSeek-V3 request of so many tokens holds.
REQUEST_TOKENS, REQUEST_BYTES = 4096, 6.67e9

# By table: what is to be known beside it.
ODDITIES: Mapping[str, tuple[str, ...]] = {
    "table1": (
        "HiCache takes 2,559 s at 16 DeepSeek agents and 2,277 s at 32: more agents, less time.",
        "HiCache takes 1,678 s on four GPUs and 1,112 s on two: fewer GPUs, less time.",
        "Qwen's request cap is faster than no control at TP4 and slower at TP8.",
    ),
    "table2": (
        "The paper labels this table TP8 on 8 GPUs; Table 1's DeepSeek rows are TP16 on 16.",
        "At 16 agents the paper has hit rates of 80 % and 96 % for no control and CONCUR: had the pool held all, they "
        "would be equal; had it not, 32 agents would hit far less than 78 %.",
    ),
    "u_high": (
        "The paper labels the threshold tables in ms, but they repeat Table 1's seconds.",
        "Its text says that U_high 0.4 costs 46 to 64 %; its table gives 44 % at TP4 (1,089 s, as its request cap).",
        "Its text says that U_high 0.8 costs 4 to 5 times; its table gives 5.2, 3.0 and 3.0.",
    ),
    "u_low": ("The paper labels the threshold tables in ms, but they repeat Table 1's seconds.",),
    "windows": (
        "The paper gives no seconds of the fixed windows: adaptive is 1.5 to 2.9 times faster. Other readers of it "
        "name 64 as the best, 1.9 times slower than adaptive.",
    ),
    "decomposition": (
        "The paper names no batch size for its decomposition; it is compared with the nearest of three rows.",
    ),
    "figure1": (
        "The paper gives 6.67 GB for one DeepSeek-V3 request of 4,096 tokens. Its latent KV is 70 kB a token and rank: "
        "0.29 GB a rank, 4.6 GB over 16 ranks. The figure counts another layout.",
    ),
}
