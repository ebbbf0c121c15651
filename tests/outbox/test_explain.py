"""`explain` of an outbox prints its plan."""

from __future__ import annotations

from spark_ckpt_delta import DeltaSink

from spark_ckpt.outbox.outbox import Outbox


def test_explain_names_store_checkpoint_and_the_rows_of_each_sink(capsys, tmp_path):
    sinks = {
        "gold": DeltaSink("/data/gold"),
        "big": DeltaSink("/data/big").rows("k", where="n > 2", twice="n * 2"),
    }
    Outbox(str(tmp_path / "store"), name="orders", checkpoint="/data/checkpoint", sinks=sinks).explain()
    assert (
        capsys.readouterr().out
        == f"""outbox orders
  store       {tmp_path}/store
  checkpoint  /data/checkpoint
  sink gold
    rows   every column
    to     kind delta, path /data/gold, engine deltalake
  sink big
    rows   k, n * 2 AS twice
    where  n > 2
    to     kind delta, path /data/big, engine deltalake
"""
    )
