"""Accounts that hang together by the cards they used: connected components of a graph that grows, by a loop.

Accounts and cards are nodes, a payment links two. A node that hears of a smaller label tells its
neighbours, until nobody has news.

python fraud_rings.py FOLDER [drain]      FOLDER/inbox/*.json: account string, card string
"""

import sys

import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from spark_ckpt_delta import DeltaSink
from spark_ckpt_files import FilesSource

import spark_ckpt as ckpt


def relabel(key, frames, state):
    """State: the node's label, and its neighbours. Rows name a new neighbour, or a neighbour's label."""
    [node], rows = key, pd.concat(frames)
    before, neighbours = state.get if state.exists else (None, [])
    known = sorted({*neighbours, *rows["neighbour"].dropna()})
    label = min([before or node, *rows["label"].dropna()])
    state.update((label, known))
    if label != before:
        yield node, label, None
    for neighbour in known if label != before else set(known) - set(neighbours):
        yield node, label, neighbour


def build(spark: SparkSession, folder: str) -> ckpt.Job:
    job = ckpt.Job(spark, "rings", store=f"{folder}/store", interval="5 seconds")
    payments = job.source("payments", FilesSource(f"{folder}/inbox", "json", "account string, card string"))
    told = job.feedback("told", "node string, neighbour string, label string")

    nothing = F.lit(None).cast("string")
    account, card = F.concat(F.lit("account "), "account"), F.concat(F.lit("card "), "card")
    there = payments.select(account.alias("node"), card.alias("neighbour"), nothing.alias("label"))
    back = payments.select(card.alias("node"), account.alias("neighbour"), nothing.alias("label"))
    news = there.union(back).union(told).groupBy("node")
    labels = news.applyInPandasWithState(
        relabel,
        "node string, label string, tell string",
        "label string, neighbours array<string>",
        "append",
        "NoTimeout",
        name="labels",
    )
    news_of_others = labels.filter("tell IS NOT NULL")
    told.close(news_of_others.select(F.col("tell").alias("node"), nothing.alias("neighbour"), "label"))
    rings = labels.filter("tell IS NULL AND node LIKE 'account %'")
    rings.select(F.expr("substring(node, 9)").alias("account"), "label").to(DeltaSink(f"{folder}/rings"))
    return job


if __name__ == "__main__":
    folder, *drain = sys.argv[1:]
    build(ckpt.session("rings"), folder).start(availableNow="drain" in drain).awaitTermination()
