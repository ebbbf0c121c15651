-------------------------- MODULE TraceStageLines --------------------------
\* Are recorded runs of stages (RecordedLines, written by a test) behaviours of StageLines?
\* A recorded step that no action allows, or after which the stage shows something else, is a deadlock.
EXTENDS StageLines, RecordedLines

VARIABLES trace, position  \* the run, and how much of it is done

AnyGraph == {Runs[each].graph : each \in 1 .. Len(Runs)}

Act(s) ==
  CASE s.act = "take" -> Take(s.n, s.seen.row)
    [] s.act = "cut" -> Cut(s.n)
    [] s.act = "commit" -> Commit(s.n, s.seen.index, s.seen.sent)
    [] s.act = "say" -> Say(s.n, s.seen.index)
    [] s.act = "publish" -> Publish(s.n, s.seen.epoch)
    [] s.act = "crash" -> Crash(s.n)
    [] s.act = "rest" -> AtRest /\ UNCHANGED vars

\* Rows that tasks have counted in a batch, positions in a manifest, and the log that a restarted stage finds.
Shown(s) ==
  CASE s.act = "take" -> s.seen.had < 0 \/ had'[graph.edges[s.n].to] = s.seen.had
    [] s.act = "commit" -> log'[s.n][Len(log'[s.n])].read = s.seen.read
    [] s.act = "crash" -> Len(log[s.n]) = s.seen.epochs /\ Index(s.n) = s.seen.index /\ Committed(s.n) = s.seen.read
    [] OTHER -> TRUE

TraceInit == trace \in 1 .. Len(Traces) /\ position = 0 /\ Init /\ graph = Runs[trace].graph /\ protocol = Runs[trace].protocol

TraceNext ==
  \/ /\ position < Len(Traces[trace])
     /\ position' = position + 1 /\ trace' = trace
     /\ Act(Traces[trace][position + 1]) /\ Shown(Traces[trace][position + 1])
  \/ position = Len(Traces[trace]) /\ UNCHANGED <<vars, trace, position>>

TraceSpec == TraceInit /\ [][TraceNext]_<<vars, trace, position>>
=============================================================================
