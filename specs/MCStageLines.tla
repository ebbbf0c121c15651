---------------------------- MODULE MCStageLines ----------------------------
\* Scopes: a pipeline, a loop, and two senders of one reader. A loop is refused with `aligned`.
EXTENDS StageLines

CONSTANT Names

Pair == [stages |-> {"a", "b"}, edges |-> [ab |-> [from |-> "a", to |-> "b"]]]
Loop == [stages |-> {"a", "b"}, edges |-> [ab |-> [from |-> "a", to |-> "b"], ba |-> [from |-> "b", to |-> "a"]]]
Chain == [stages |-> {"a", "b", "c"}, edges |-> [ab |-> [from |-> "a", to |-> "b"], bc |-> [from |-> "b", to |-> "c"]]]
Join == [stages |-> {"a", "b", "c"}, edges |-> [ac |-> [from |-> "a", to |-> "c"], bc |-> [from |-> "b", to |-> "c"]]]

Named == [pair |-> Pair, loop |-> Loop, chain |-> Chain, join |-> Join]
Chosen == {Named[name] : name \in Names}
=============================================================================
