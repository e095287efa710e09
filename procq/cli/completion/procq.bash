# bash completion for procq.  Made by `python -m procq.cli.completing`; do not edit.
_procq() {
    local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} name=${COMP_WORDS[1]} index
    COMPREPLY=()
    if [[ $current == = ]]; then current=
    elif [[ $before == = ]]; then before=${COMP_WORDS[COMP_CWORD-2]}; fi
    if ((COMP_CWORD == 1)); then
        COMPREPLY=($(compgen -W "run map show graph runs status logs trace report completion doctor version --help --version" -- "$current"))
        return
    fi
    case $name in
    'run')
        case $before in
        --on-failure) COMPREPLY=($(compgen -W 'finish kill' -- "$current")); return;;
        --policy) COMPREPLY=($(compgen -W 'strict aging fair' -- "$current")); return;;
        --output) COMPREPLY=($(compgen -W 'failed all none files' -- "$current")); return;;
        --color) COMPREPLY=($(compgen -W 'auto always never' -- "$current")); return;;
        --progress) COMPREPLY=($(compgen -W 'auto live plain off' -- "$current")); return;;
        -j|--workers|--group|-p|--params-file|--first|--max-attempts|--timeout|--deadline|--max-failures|--stop-timeout|--kill-grace|--max-tasks-per-worker|--max-memory-per-worker|--recycle-memory|--min-free-memory|--limit|--max-pending|--set|--lookahead|--nice|--results|--events|--trace|--durations|--state|--keep-runs|--interval) return;;
        esac
        if [[ $current == -* ]]; then COMPREPLY=($(compgen -W '-h --help -m -j --workers --group -p --params-file --first -n --dry-run --max-attempts --timeout --deadline -x -k --max-failures --on-failure --stop-timeout --kill-grace --max-tasks-per-worker --max-memory-per-worker --recycle-memory --min-free-memory --limit --max-pending --policy --set --lookahead --nice --allow-empty --results --events --json --trace --durations --state --no-state --keep-runs --output -q -v --color --progress --interval --ascii' -- "$current"))
        fi;;
    'map')
        case $before in
        --on-failure) COMPREPLY=($(compgen -W 'finish kill' -- "$current")); return;;
        --policy) COMPREPLY=($(compgen -W 'strict aging fair' -- "$current")); return;;
        --output) COMPREPLY=($(compgen -W 'failed all none files' -- "$current")); return;;
        --color) COMPREPLY=($(compgen -W 'auto always never' -- "$current")); return;;
        --progress) COMPREPLY=($(compgen -W 'auto live plain off' -- "$current")); return;;
        -j|--workers|--group|--first|--max-attempts|--timeout|--deadline|--max-failures|--stop-timeout|--kill-grace|--max-tasks-per-worker|--max-memory-per-worker|--recycle-memory|--min-free-memory|--limit|--max-pending|--set|--lookahead|--nice|--results|--events|--trace|--durations|--state|--keep-runs|--interval) return;;
        esac
        if [[ $current == -* ]]; then COMPREPLY=($(compgen -W '-h --help -0 --null --unordered -j --workers --group --first -n --dry-run --max-attempts --timeout --deadline -x -k --max-failures --on-failure --stop-timeout --kill-grace --max-tasks-per-worker --max-memory-per-worker --recycle-memory --min-free-memory --limit --max-pending --policy --set --lookahead --nice --allow-empty --results --events --json --trace --durations --state --no-state --keep-runs --output -q -v --color --progress --interval --ascii' -- "$current"))
        fi;;
    'show')
        if [[ $current == -* ]]; then COMPREPLY=($(compgen -W '-h --help -m --json' -- "$current"))
        fi;;
    'graph')
        case $before in
        --format) COMPREPLY=($(compgen -W 'mermaid dot svg json' -- "$current")); return;;
        --by) COMPREPLY=($(compgen -W 'type task' -- "$current")); return;;
        -p|--params-file|--first) return;;
        esac
        if [[ $current == -* ]]; then COMPREPLY=($(compgen -W '-h --help -m --format --by -p --params-file --first' -- "$current"))
        fi;;
    'runs')
        case $before in
        --state) return;;
        esac
        if [[ $current == -* ]]; then COMPREPLY=($(compgen -W '-h --help --json --state' -- "$current"))
        fi;;
    'status')
        case $before in
        --state) return;;
        esac
        if [[ $current == -* ]]; then COMPREPLY=($(compgen -W '-h --help --json --state' -- "$current"))
        fi;;
    'logs')
        case $before in
        --run|--state) return;;
        esac
        if [[ $current == -* ]]; then COMPREPLY=($(compgen -W '-h --help -f --follow --run --state' -- "$current"))
        fi;;
    'trace')
        case $before in
        --format) COMPREPLY=($(compgen -W 'tsv jsonl chrome' -- "$current")); return;;
        --state) return;;
        esac
        if [[ $current == -* ]]; then COMPREPLY=($(compgen -W '-h --help --format --state' -- "$current"))
        fi;;
    'report')
        case $before in
        -o|--output|--state) return;;
        esac
        if [[ $current == -* ]]; then COMPREPLY=($(compgen -W '-h --help -o --output --state' -- "$current"))
        fi;;
    'completion')
        if [[ $current == -* ]]; then COMPREPLY=($(compgen -W '-h --help' -- "$current"))
        else COMPREPLY=($(compgen -W 'bash zsh fish' -- "$current"))
        fi;;
    'doctor')
        if [[ $current == -* ]]; then COMPREPLY=($(compgen -W '-h --help --json' -- "$current"))
        fi;;
    'version')
        if [[ $current == -* ]]; then COMPREPLY=($(compgen -W '-h --help' -- "$current"))
        fi;;
    esac
}
complete -o bashdefault -o default -F _procq procq
