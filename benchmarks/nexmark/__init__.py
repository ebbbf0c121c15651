"""NEXMark: people, auctions and bids in one topic, and what every query must answer.

`events` makes the events, `answers` judges an output, `streams` and `tables` are how spark_ckpt and Flink SQL read the topic. The
queries stand in `benchmarks/jobs/nexmark_q*.py`.
"""
