#compdef procq
# zsh completion for procq.  Made by `python -m procq.cli.completing`; do not edit.
_procq_run() {
    _arguments -s \
        '*-h[show this help message and exit]' '*--help[show this help message and exit]' \
        '*-m[FILE is a module'\''s dotted name]' \
        '*-j+[worker processes (auto\: one a usable CPU)]:value: ' '*--workers=[worker processes (auto\: one a usable CPU)]:value: ' \
        '*--group=[workers for tasks of that group; again for other groups]:value: ' \
        '*-p+[a parameter of the entry; again for a list]:value: ' \
        '*--params-file=[parameters of the entry from a file; -p wins over it]:value:_files' \
        '*--first=[only the first N tasks of the entry, and what they need]:value: ' \
        '*-n[list what would run, to standard output; run nothing]' '*--dry-run[list what would run, to standard output; run nothing]' \
        '*--max-attempts=[tries in all, for tasks that don'\''t say (1)]:value: ' \
        '*--timeout=[limit of one attempt, for tasks that don'\''t say (none)]:value: ' \
        '*--deadline=[end the run by then, exit code 4]:value: ' \
        '*-x[stop at the first failure\: --max-failures 1]' \
        '*-k[keep going after failures (default)]' \
        '*--max-failures=[stop when so many tasks have failed, or such a share of them]:value: ' \
        '*--on-failure=[what becomes then of running attempts (finish)]:value:(finish kill)' \
        '*--stop-timeout=[time running attempts get after a stop signal (8s after SIGTERM, no limit after Ctrl-C)]:value: ' \
        '*--kill-grace=[between asking an attempt to stop and killing it (1s)]:value: ' \
        '*--max-tasks-per-worker=[replace a worker after so many attempts (never)]:value: ' \
        '*--max-memory-per-worker=[kill a worker that holds more; fails its attempt (no limit)]:value: ' \
        '*--recycle-memory=[replace a worker that holds more after an attempt (as above)]:value: ' \
        '*--min-free-memory=[start nothing beside what runs while less is available (no bound)]:value: ' \
        '*--limit=[run at most so many tasks of a type at once; again for others]:value: ' \
        '*--max-pending=[tasks that wait at most; then the entry waits (no bound)]:value: ' \
        '*--policy=[who is next\: priority, priority and wait, or a share for each level (strict)]:value:(strict aging fair)' \
        '*--set=[set an option of all tasks of a type, whatever they say; again for others]:value: ' \
        '*--lookahead=[tasks read ahead of the workers (1000, or 20 a worker if that is more)]:value: ' \
        '*--nice=[lower the priority of the run'\''s processes by N]:value: ' \
        '*--allow-empty[no tasks is fine]' \
        '*--results=[write one line a task\: id, status, value; - is standard output]:value:_files' \
        '*--events=[write each event as a line of JSON; - is standard output]:value:_files' \
        '*--json[--events -, and no other words but errors]' \
        '*--trace=[add one line an attempt to this table (TSV)]:value:_files' \
        '*--durations=[name the N slowest tasks at the end (5 after a run of 10s or more)]:value: ' \
        '*--state=[where runs keep their state (.procq)]:value:_files' \
        '*--no-state[keep none]' \
        '*--keep-runs=[runs whose state is kept, this one included (20)]:value: ' \
        '*--output=[capture what tasks write\: show it of failed ones, of all, drop it, or only keep it for procq logs]:value:(failed all none files)' \
        '*-q[only what went wrong]' \
        '*-v[full tracebacks]' \
        '*--color=[colour (auto\: on a terminal)]:value:(auto always never)' \
        '*--progress=[lines redrawn in place, or plain ones now and then (auto\: live on a terminal)]:value:(auto live plain off)' \
        '*--interval=[between two looks (live\: 0.2s; plain\: 30s)]:value: ' \
        '*--ascii[nothing but ASCII in what is redrawn]' \
        '*: :_files'
}
_procq_map() {
    _arguments -s \
        '*-h[show this help message and exit]' '*--help[show this help message and exit]' \
        '*-0[items of standard input end with a null byte, as of find -print0]' '*--null[items of standard input end with a null byte, as of find -print0]' \
        '*--unordered[print values as they come]' \
        '*-j+[worker processes (auto\: one a usable CPU)]:value: ' '*--workers=[worker processes (auto\: one a usable CPU)]:value: ' \
        '*--group=[workers for tasks of that group; again for other groups]:value: ' \
        '*--first=[only the first N tasks of the entry, and what they need]:value: ' \
        '*-n[list what would run, to standard output; run nothing]' '*--dry-run[list what would run, to standard output; run nothing]' \
        '*--max-attempts=[tries in all, for tasks that don'\''t say (1)]:value: ' \
        '*--timeout=[limit of one attempt, for tasks that don'\''t say (none)]:value: ' \
        '*--deadline=[end the run by then, exit code 4]:value: ' \
        '*-x[stop at the first failure\: --max-failures 1]' \
        '*-k[keep going after failures (default)]' \
        '*--max-failures=[stop when so many tasks have failed, or such a share of them]:value: ' \
        '*--on-failure=[what becomes then of running attempts (finish)]:value:(finish kill)' \
        '*--stop-timeout=[time running attempts get after a stop signal (8s after SIGTERM, no limit after Ctrl-C)]:value: ' \
        '*--kill-grace=[between asking an attempt to stop and killing it (1s)]:value: ' \
        '*--max-tasks-per-worker=[replace a worker after so many attempts (never)]:value: ' \
        '*--max-memory-per-worker=[kill a worker that holds more; fails its attempt (no limit)]:value: ' \
        '*--recycle-memory=[replace a worker that holds more after an attempt (as above)]:value: ' \
        '*--min-free-memory=[start nothing beside what runs while less is available (no bound)]:value: ' \
        '*--limit=[run at most so many tasks of a type at once; again for others]:value: ' \
        '*--max-pending=[tasks that wait at most; then the entry waits (no bound)]:value: ' \
        '*--policy=[who is next\: priority, priority and wait, or a share for each level (strict)]:value:(strict aging fair)' \
        '*--set=[set an option of all tasks of a type, whatever they say; again for others]:value: ' \
        '*--lookahead=[tasks read ahead of the workers (1000, or 20 a worker if that is more)]:value: ' \
        '*--nice=[lower the priority of the run'\''s processes by N]:value: ' \
        '*--allow-empty[no tasks is fine]' \
        '*--results=[write one line a task\: id, status, value; - is standard output]:value:_files' \
        '*--events=[write each event as a line of JSON; - is standard output]:value:_files' \
        '*--json[--events -, and no other words but errors]' \
        '*--trace=[add one line an attempt to this table (TSV)]:value:_files' \
        '*--durations=[name the N slowest tasks at the end (5 after a run of 10s or more)]:value: ' \
        '*--state=[where runs keep their state (.procq)]:value:_files' \
        '*--no-state[keep none]' \
        '*--keep-runs=[runs whose state is kept, this one included (20)]:value: ' \
        '*--output=[capture what tasks write\: show it of failed ones, of all, drop it, or only keep it for procq logs]:value:(failed all none files)' \
        '*-q[only what went wrong]' \
        '*-v[full tracebacks]' \
        '*--color=[colour (auto\: on a terminal)]:value:(auto always never)' \
        '*--progress=[lines redrawn in place, or plain ones now and then (auto\: live on a terminal)]:value:(auto live plain off)' \
        '*--interval=[between two looks (live\: 0.2s; plain\: 30s)]:value: ' \
        '*--ascii[nothing but ASCII in what is redrawn]' \
        '*: :_files'
}
_procq_show() {
    _arguments -s \
        '*-h[show this help message and exit]' '*--help[show this help message and exit]' \
        '*-m[FILE is a module'\''s dotted name]' \
        '*--json[as one JSON object]' \
        '*: :_files'
}
_procq_graph() {
    _arguments -s \
        '*-h[show this help message and exit]' '*--help[show this help message and exit]' \
        '*-m[FILE is a module'\''s dotted name]' \
        '*--format=[how it is written (mermaid)]:value:(mermaid dot svg json)' \
        '*--by=[a node for each type, or for each task (type)]:value:(type task)' \
        '*-p+[a parameter of the entry; again for a list]:value: ' \
        '*--params-file=[parameters of the entry from a file; -p wins over it]:value:_files' \
        '*--first=[only the first N tasks of the entry, and what they need]:value: ' \
        '*: :_files'
}
_procq_runs() {
    _arguments -s \
        '*-h[show this help message and exit]' '*--help[show this help message and exit]' \
        '*--json[one JSON object a line]' \
        '*--state=[where runs keep their state (.procq)]:value:_files' \
        '*: :_files'
}
_procq_status() {
    _arguments -s \
        '*-h[show this help message and exit]' '*--help[show this help message and exit]' \
        '*--json[one JSON object]' \
        '*--state=[where runs keep their state (.procq)]:value:_files' \
        '*: :_files'
}
_procq_logs() {
    _arguments -s \
        '*-h[show this help message and exit]' '*--help[show this help message and exit]' \
        '*-f[go on until the task has ended]' '*--follow[go on until the task has ended]' \
        '*--run=[the run'\''s id or how it begins (default\: the newest)]:value: ' \
        '*--state=[where runs keep their state (.procq)]:value:_files' \
        '*: :_files'
}
_procq_trace() {
    _arguments -s \
        '*-h[show this help message and exit]' '*--help[show this help message and exit]' \
        '*--format=[a table (default), JSON, or a timeline]:value:(tsv jsonl chrome)' \
        '*--state=[where runs keep their state (.procq)]:value:_files' \
        '*: :_files'
}
_procq_report() {
    _arguments -s \
        '*-h[show this help message and exit]' '*--help[show this help message and exit]' \
        '*-o+[the file; default\: report.html beside the events]:value:_files' '*--output=[the file; default\: report.html beside the events]:value:_files' \
        '*--state=[where the runs are; default\: .procq]:value:_files' \
        '*: :_files'
}
_procq_completion() {
    _arguments -s \
        '*-h[show this help message and exit]' '*--help[show this help message and exit]' \
        '*: :(bash zsh fish)'
}
_procq_doctor() {
    _arguments -s \
        '*-h[show this help message and exit]' '*--help[show this help message and exit]' \
        '*--json[as one JSON object]' \
        '*: :_files'
}
_procq_version() {
    _arguments -s \
        '*-h[show this help message and exit]' '*--help[show this help message and exit]' \
        '*: :_files'
}
_procq() {
    local -a known=(
        'run:run a jobs file'
        'map:call a function for each of some texts'
        'show:list entries, parameters and task functions of a jobs file'
        'graph:draw what a jobs file would run'
        'runs:list past runs and those that are alive'
        'status:show a run: tasks by status, what runs, what failed'
        'logs:show what the attempts of a task wrote'
        'trace:write the attempts of a run as a table or a timeline'
        'report:write the report of a run as one HTML file'
        'completion:print the completion script of a shell'
        'doctor:say what this machine gives procq, and what it lacks'
        'version:print the version'
    )
    if ((CURRENT == 2)); then _describe command known; return; fi
    shift words; ((CURRENT--))
    case $words[1] in
    run) _procq_run;;
    map) _procq_map;;
    show) _procq_show;;
    graph) _procq_graph;;
    runs) _procq_runs;;
    status) _procq_status;;
    logs) _procq_logs;;
    trace) _procq_trace;;
    report) _procq_report;;
    completion) _procq_completion;;
    doctor) _procq_doctor;;
    version) _procq_version;;
    esac
}
if [ "$funcstack[1]" = _procq ]; then _procq "$@"; else compdef _procq procq; fi
