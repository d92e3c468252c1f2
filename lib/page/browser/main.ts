import { openPage } from './page.js'
import { serverLink } from './server-link.js'

openPage(serverLink)
