# bash completion for procq.  Made by `python -m procq.cli.completing`; do not edit.
_procq() {
    local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} name=${COMP_WORDS[1]} index
    COMPREPLY=()
    if [[ $current == = ]]; then current=
    elif [[ $before == = ]]; then before=${COMP_WORDS[COMP_CWORD-2]}; fi
    if ((COMP_CWORD == 1)); then
        COMPREPLY=($(compgen -W "run map show graph completion doctor version --help --version" -- "$current"))
        return
    fi
    case $name in
    'run')
        case $before in
        --on-failure) COMPREPLY=($(compgen -W 'finish kill' -- "$current")); return;;
        --policy) COMPREPLY=($(compgen -W 'strict aging fair' -- "$current")); return;;
        --color) COMPREPLY=($(compgen -W 'auto always never' -- "$current")); return;;
        --progress) COMPREPLY=($(compgen -W 'auto plain off' -- "$current")); return;;
        -j|--workers|--group|-p|--params-file|--first|--max-attempts|--timeout|--deadline|--max-failures|--stop-timeout|--kill-grace|--max-tasks-per-worker|--max-memory-per-worker|--recycle-memory|--min-free-memory|--limit|--max-pending|--set|--lookahead|--nice|--results|--interval) return;;
        esac
        if [[ $current == -* ]]; then COMPREPLY=($(compgen -W '-h --help -m -j --workers --group -p --params-file --first -n --dry-run --max-attempts --timeout --deadline -x -k --max-failures --on-failure --stop-timeout --kill-grace --max-tasks-per-worker --max-memory-per-worker --recycle-memory --min-free-memory --limit --max-pending --policy --set --lookahead --nice --allow-empty --results -q -v --color --progress --interval' -- "$current"))
        fi;;
    'map')
        case $before in
        --on-failure) COMPREPLY=($(compgen -W 'finish kill' -- "$current")); return;;
        --policy) COMPREPLY=($(compgen -W 'strict aging fair' -- "$current")); return;;
        --color) COMPREPLY=($(compgen -W 'auto always never' -- "$current")); return;;
        --progress) COMPREPLY=($(compgen -W 'auto plain off' -- "$current")); return;;
        -j|--workers|--group|--first|--max-attempts|--timeout|--deadline|--max-failures|--stop-timeout|--kill-grace|--max-tasks-per-worker|--max-memory-per-worker|--recycle-memory|--min-free-memory|--limit|--max-pending|--set|--lookahead|--nice|--results|--interval) return;;
        esac
        if [[ $current == -* ]]; then COMPREPLY=($(compgen -W '-h --help -0 --null --unordered -j --workers --group --first -n --dry-run --max-attempts --timeout --deadline -x -k --max-failures --on-failure --stop-timeout --kill-grace --max-tasks-per-worker --max-memory-per-worker --recycle-memory --min-free-memory --limit --max-pending --policy --set --lookahead --nice --allow-empty --results -q -v --color --progress --interval' -- "$current"))
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
