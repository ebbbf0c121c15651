"""NEXMark: people, auctions and bids in one topic, and the answer to every query.

`events` makes the events, `answers` judges an output, `streams` and `tables` are how spark_ckpt and Flink SQL read the topic. The
queries are in `benchmarks/jobs/nexmark_q*.py`.
"""
